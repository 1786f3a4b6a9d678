"""What ranks must agree on before the first slice leaves. Collective: every rank calls."""

from __future__ import annotations

import warnings

from p3.engine import PlanMismatchError
from p3.rendezvous import Exchange
from p3_agent import client
from p3_shaper.bands import BandTable, default_table


class NoAgentWarning(UserWarning):
    """No p3-agent runs on this node: slices leave in order, but the kernel does not keep it."""


def agree_on_bands(exchange: Exchange, chosen: BandTable | None) -> BandTable:
    """The user's band table, else the agents', else the default one; the same on every rank.

    Raises PlanMismatchError when two nodes have different tables. Warns on a node without agent.
    """
    mine = chosen or client.bands()
    if mine is None:
        warnings.warn(
            "no p3-agent answers on this node: training goes on, but the network will not "
            "put urgent slices first; start `p3-agent run` here as root",
            NoAgentWarning,
            stacklevel=2,
        )
    known: dict[BandTable, int] = {}
    for rank, table in enumerate(exchange(mine)):
        if isinstance(table, BandTable):
            known.setdefault(table, rank)
    if len(known) > 1:
        (one, first), (other, second), *_ = known.items()
        raise PlanMismatchError(
            f"rank {first} has bands with DSCPs {one.dscps}, rank {second} {other.dscps}: "
            "give every node's p3-agent the same bands"
        )
    return next(iter(known), default_table())


def check_same(exchange: Exchange, what: str, mine: bytes) -> None:
    """PlanMismatchError on every rank, naming the ranks that differ, unless all have `mine`."""
    everyone = exchange(mine)
    different = [rank for rank, theirs in enumerate(everyone) if theirs != everyone[0]]
    if different:
        raise PlanMismatchError(
            f"ranks {different} have a different {what} than rank 0: model, dtypes, frozen "
            "parameters, slice_numel, engine, servers and update must be the same on every rank"
        )
