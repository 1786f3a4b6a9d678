"""Interfaces that stand on others (VLANs, bonds): what a tree on one can order. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from p3_agent.errors import AgentError
from p3_shaper.link import Link

_HANDS_ON = frozenset({"vlan", "bond", "team", "bridge", "macvlan", "ipvlan", "macsec", "vxlan"})
_MODES = (
    "balance-rr",
    "active-backup",
    "balance-xor",
    "broadcast",
    "802.3ad",
    "balance-tlb",
    "balance-alb",
)
"""By number, as linux/if_bonding.h has them."""
_ACTIVE_BACKUP = 1


def holds_queue(link: Link) -> bool:
    """Whether packets wait in `link` without a rate: not where each is handed on at once."""
    return link.kind not in _HANDS_ON


def require_bond_of_one(link: Link, links: Iterable[Link]) -> None:
    """Raise AgentError if `link` spreads its packets over several of `links`.

    Those have the queues that fill, each its own, and a tree above cannot order what waits there.
    A bond that is active-backup sends on one at a time, so that a rate on it holds.
    """
    if link.kind not in ("bond", "team") or link.bond_mode == _ACTIVE_BACKUP:
        return
    mode = "team" if link.bond_mode is None else f"bond, {_MODES[link.bond_mode]}"
    raise AgentError(
        f"{link.name} ({mode}) spreads its packets over {_below(link, links)}, and a tree on it "
        "cannot order the queues of those: run an agent on each of them, with its own rate"
    )


def require_rate(link: Link, mode: str, links: Iterable[Link]) -> None:
    """Raise AgentError if `mode`, which holds no rate, would have nothing to order on `link`."""
    if not holds_queue(link):
        raise AgentError(
            f"nothing waits in {link.name}, which as a {link.kind} hands each packet on at once, "
            f"so mode {mode} would order nothing there: give --rate, or run an agent on "
            f"{_below(link, links)}"
        )


def _below(link: Link, links: Iterable[Link]) -> str:
    names = [item.name for item in links if item.master == link.index or item.index == link.parent]
    return " and ".join(names) or "the interfaces below it"
