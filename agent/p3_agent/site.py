"""What is to be done where: the link's facts, the mode that follows, and the wanted tree."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from p3_agent import stacking
from p3_agent.config import Settings
from p3_agent.errors import AgentError
from p3_agent.modes import Choice, Means, Wish, choose, missing
from p3_shaper.bands import BandTable
from p3_shaper.link import Link
from p3_shaper.multiqueue import mq_tree, queue_rate
from p3_shaper.netlink import Netlink
from p3_shaper.rates import Rate
from p3_shaper.tree import Tree, ets_tree, htb_prio_tree, htb_tree, prio_tree

_KINDS = frozenset({"htb", "prio", "ets", "bfifo", "u32", "mq"})
TRUE_SPEED = frozenset({"", "vlan", "bond", "team"})
"""Kinds of link whose speed is the wire's; a veth's or a tun's is a number without meaning."""
_CAP_NET_ADMIN = 12


@dataclass(frozen=True, slots=True)
class Site:
    """One interface and what it is to carry."""

    link: Link
    table: BandTable
    choice: Choice
    wanted: Tree

    def describe(self) -> str:
        """In words: `eth0: htb at 200mbit (why)`."""
        rate = "" if self.choice.rate is None else f" at {self.choice.rate}"
        return f"{self.link.name}: {self.choice.mode}{rate} ({self.choice.reason})"


async def survey(netlink: Netlink, settings: Settings) -> Site:
    """Look and decide; changes nothing.

    Raises TcError for an unknown interface, TreeError for guarantees past the rate, AgentError for
    a mode that cannot be.
    """
    link = await netlink.link(settings.device)
    there = _KINDS - await netlink.missing(_KINDS)
    speed = link.speed if link.kind in TRUE_SPEED else None
    links = [] if stacking.holds_queue(link) else await netlink.links()
    stacking.require_bond_of_one(link, links)
    choice = choose(
        Wish(settings.mode, settings.rate, len(settings.table)),
        Means(link.name, speed, there, stacking.holds_queue(link)),
    )
    if choice.rate is None:
        stacking.require_rate(link, choice.mode, links)
    wanted = tree_for(choice, settings, link)
    for kind in sorted(wanted.kinds - there):
        raise AgentError(missing(kind))
    return Site(link, settings.table, choice, wanted)


def at_rate(site: Site, settings: Settings, rate: Rate) -> Site:
    """The same at another rate; AgentError in mode prio, TreeError for guarantees past it."""
    if site.choice.rate is None:
        raise AgentError(
            f"{site.link.name}: mode {site.choice.mode} holds no rate: run with --rate"
        )
    choice = replace(site.choice, rate=rate, reason=f"{rate} was asked for on the control socket")
    return replace(site, choice=choice, wanted=tree_for(choice, settings, site.link))


def tree_for(choice: Choice, settings: Settings, link: Link) -> Tree:
    """The wanted tree; TreeError when it cannot work."""
    of_queue = choice.mode.removeprefix("mq+")
    if of_queue != "htb" and settings.guarantee is not None:
        raise AgentError(
            f"bands have a guarantee in mode htb only, and the mode is {choice.mode}: "
            "leave `guarantee` out of the config, or choose --mode htb"
        )
    if of_queue == choice.mode:
        return _tree(choice.mode, choice.rate, settings, link)
    rate = None if choice.rate is None else queue_rate(choice.rate, link.tx_queues)
    return mq_tree(_tree(of_queue, rate, settings, link), link.tx_queues)


def _tree(mode: str, rate: Rate | None, settings: Settings, link: Link) -> Tree:
    if rate is None:
        return (ets_tree if mode == "ets" else prio_tree)(settings.table)
    if mode == "htb":
        return htb_tree(settings.table, rate, link.limits, guarantee=settings.guarantee)
    return htb_prio_tree(settings.table, rate, link.limits)


def require_net_admin() -> None:
    """Raise AgentError unless this process may change interfaces."""
    for line in Path("/proc/self/status").read_text("ascii").splitlines():
        name, _, value = line.partition(":")
        if name == "CapEff" and not int(value, 16) >> _CAP_NET_ADMIN & 1:
            raise AgentError(
                "no right to change interfaces: run p3-agent as root, or grant it CAP_NET_ADMIN"
            )
