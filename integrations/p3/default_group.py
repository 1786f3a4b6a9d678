"""What ranks settle over torch.distributed's default group, whatever its backend."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist

from p3.engine import PeerLostError
from p3.forward_order import ForwardOrder


def exchange_over_default_group(mine: object) -> list[object]:
    """Give one's own object, get every rank's, in rank order. Collective; blocks."""
    everyone: list[object] = [None] * dist.get_world_size()
    with _explained():
        dist.all_gather_object(everyone, mine)
    return everyone


def agree_on_order(order: ForwardOrder) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Rank 0's layers and their starts, for all: ranks may watch different paths."""
    box: list[tuple[tuple[int, ...], tuple[float, ...]]] = [(order.layer_of, order.starts)]
    with _explained():
        dist.broadcast_object_list(box, src=0)
    return box[0]


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # Gloo's, with its text, as torch's own are
        raise PeerLostError(
            f"rank {dist.get_rank()} loses another one while the ranks agree what to do: {error}; "
            "see the others' logs"
        ) from error


def next_job_name() -> str:
    """A name for the next job of these ranks; the same on all of them."""
    return f"job{default_store().add(f'p3/jobs/{dist.get_rank()}', 1)}"


def default_store() -> dist.distributed_c10d.Store:
    """What the group was made with; it lives while someone holds it."""
    return dist.distributed_c10d._get_default_store()
