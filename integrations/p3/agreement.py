"""What ranks must agree on before the first slice leaves, settled over the default group."""

from __future__ import annotations

import warnings

import torch.distributed as dist

from p3.engine import PlanMismatchError
from p3.forward_order import ForwardOrder
from p3_agent import client
from p3_shaper.bands import BandTable, default_table


class NoAgentWarning(UserWarning):
    """No p3-agent runs on this node: slices leave in order, but the kernel does not keep it."""


def agree_on_order(order: ForwardOrder) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Rank 0's layers and their starts, for all: ranks may watch different paths."""
    box: list[tuple[tuple[int, ...], tuple[float, ...]]] = [(order.layer_of, order.starts)]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def agree_on_bands(chosen: BandTable | None) -> BandTable:
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
    tables: list[BandTable | None] = [None] * dist.get_world_size()
    dist.all_gather_object(tables, mine)
    known = {table: rank for rank, table in reversed(list(enumerate(tables))) if table is not None}
    if len(known) > 1:
        (one, first), (other, second), *_ = known.items()
        raise PlanMismatchError(
            f"rank {first} has bands with DSCPs {one.dscps}, rank {second} {other.dscps}: "
            "give every node's p3-agent the same bands"
        )
    return next(iter(known), default_table())


def check_same(what: str, mine: bytes) -> None:
    """PlanMismatchError on every rank, naming the ranks that differ, unless all have `mine`."""
    everyone: list[bytes] = [b""] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    different = [rank for rank, theirs in enumerate(everyone) if theirs != everyone[0]]
    if different:
        raise PlanMismatchError(
            f"ranks {different} have a different {what} than rank 0: model, dtypes, frozen "
            "parameters, slice_numel, engine and servers must be the same on every rank"
        )


def next_job_name() -> str:
    """A name for the next job of these ranks; the same on all of them."""
    store = dist.distributed_c10d._get_default_store()
    return f"job{store.add(f'p3/jobs/{dist.get_rank()}', 1)}"
