"""Looks at a node: everything that the checks need to know of it. Changes nothing."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from p3_agent import client
from p3_agent.doctor import files, firewall, programs
from p3_agent.doctor.facts import Below, EgressFilter, Facts, Load, Route
from p3_agent.messages import Status
from p3_agent.processes import holders
from p3_agent.sample import leaving
from p3_shaper.actions import actions_of
from p3_shaper.bands import BandTable
from p3_shaper.link import Link
from p3_shaper.netlink import Netlink
from p3_shaper.rates import Rate
from p3_shaper.sockdiag import Socket, sockets
from p3_shaper.tcmessage import Counters

_KINDS = frozenset({"htb", "prio", "bfifo", "u32"})
_LOOKS = 20
_MAX_PEERS = 64
_ROOT = Path("/")


@dataclass(frozen=True, slots=True)
class Question:
    """What to look at: `rate` in place of the agent's, and for how long the traffic is watched."""

    device: str
    agent: Status | None
    table: BandTable
    rate: Rate | None
    seconds: float


def ask_agent(path: str | None) -> tuple[Status | None, BandTable]:
    """The agent's status and band table; the default table without an agent. ControlError."""
    return client.status(path), client.bands(path) or BandTable()


async def collect(netlink: Netlink, question: Question) -> Facts:
    """The facts about one interface; TcError if there is none, or it cannot be read."""
    unseen: list[str] = []
    name = question.device
    link, links = await netlink.link(name), await netlink.links()
    facts = Facts(
        link=link,
        table=question.table,
        tree=await netlink.observe(link.index),
        rate=question.rate or _rate(question.agent),
        agent=question.agent,
        missing=await netlink.missing(_KINDS),
        hardware=files.hardware(_ROOT, name, link.index),
        others=_kinds_of_others(links, link),
        master=next((item.name for item in links if item.index == link.master), ""),
        lower=_below_it(links, link),
        egress=await _egress(netlink, link.index),
        tcx_programs=programs.tcx_egress(link.index, unseen),
        managers=files.managers(_ROOT, link.index, unseen),
        rewrites=firewall.look(unseen),
        transport=files.transport(_ROOT),
    )
    facts = await _watch(netlink, facts, question.seconds)
    held = holders(item.inode for item in facts.sockets)
    return replace(
        facts,
        holders=held.by_inode,
        routes=await _routes(netlink, facts.sockets),
        unseen=tuple(unseen),
    )


def _rate(agent: Status | None) -> Rate | None:
    return None if agent is None or agent.rate is None else Rate(agent.rate)


def _kinds_of_others(links: Sequence[Link], own: Link) -> dict[str, str]:
    return {item.name: item.kind for item in links if item.name not in (own.name, "lo")}


def _below_it(links: Sequence[Link], own: Link) -> tuple[str, ...]:
    """Names of what `own` sends through; a veth's parent is its other end, and receives."""
    return tuple(
        item.name
        for item in links
        if item.master == own.index or (item.index == own.parent and own.kind != "veth")
    )


async def _egress(netlink: Netlink, index: int) -> tuple[EgressFilter, ...]:
    names = dict(socket.if_nameindex())
    found = []
    for message in await netlink.egress_filters(index):
        actions = actions_of(message)
        if actions or message.kind == "bpf":
            targets = [action.redirect for action in actions if action.redirect]
            found.append(
                EgressFilter(
                    message.kind,
                    message.info >> 16,
                    actions,
                    tuple(names.get(number, f"interface {number}") for number in targets),
                )
            )
    return tuple(found)


async def _routes(netlink: Netlink, marked: Sequence[Socket]) -> tuple[Route, ...]:
    peers = sorted({item.peer for item in marked if item.peer})[:_MAX_PEERS]
    links = [(peer, await netlink.link_toward(peer)) for peer in peers]
    return tuple(Route(peer, link.name, link.kind) for peer, link in links if link is not None)


def _marked(facts: Facts) -> tuple[Socket, ...]:
    return tuple(item for item in leaving(sockets()) if item.dscp in facts.table.dscps)


async def _watch(netlink: Netlink, facts: Facts, seconds: float) -> Facts:
    """Look at queues and sockets now and then for `seconds`; the facts with what was seen."""
    looks = _LOOKS if seconds else 1
    first, marked = await _root(netlink, facts), _marked(facts)
    resent = sum(item.resent for item in marked)
    last, queued_here, wanting = first, 0, 0
    below: dict[str, list[Below]] = {name: [] for name in facts.lower}
    for _ in range(looks):
        await asyncio.sleep(seconds / looks)
        last, marked = await _root(netlink, facts), _marked(facts)
        queued_here += last.backlog > 0
        wanting += any(item.unsent for item in marked)
        for name, seen in below.items():
            seen.append(await _below(netlink, name))
    facts = replace(facts, sockets=marked, below=tuple(map(_summary, below.values())))
    if not seconds:
        return facts
    load = Load(
        seconds=seconds,
        looks=looks,
        sent=8 * max(last.bytes - first.bytes, 0) / seconds,
        queued_here=queued_here,
        wanting=wanting,
        dropped=max(last.drops - first.drops, 0),
        resent=max(sum(item.resent for item in marked) - resent, 0),
    )
    return replace(facts, load=load)


def _summary(seen: Sequence[Below]) -> Below:
    queued = sum(item.backlog > 0 for item in seen)
    most = max(item.backlog for item in seen)
    return replace(seen[-1], backlog=most, standing=queued * 2 >= len(seen))


async def _root(netlink: Netlink, facts: Facts) -> Counters:
    root = facts.tree.root
    if root is None:
        return Counters()
    return (await netlink.statistics(facts.link.index)).get(root.handle, Counters())


async def _below(netlink: Netlink, name: str) -> Below:
    link = await netlink.link(name)
    root = (await netlink.observe(link.index)).root
    counters = await netlink.statistics(link.index)
    waiting = max((item.backlog for item in counters.values()), default=0)
    return Below(name, link.kind, "" if root is None else root.kind, waiting)
