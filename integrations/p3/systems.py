"""Ways to train data-parallel, as values that `simulate` can run. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from p3.schedule import Order

Cut = Literal["slices", "kvstore", "buckets"]
Collective = Literal["ring", "server"]

KVSTORE_SPLIT_NUMEL = 1_000_000
"""MXNet's KVStore splits a tensor over all servers from this size on (paper section 4.2)."""
BUCKET_BYTES = 25 * 2**20
FIRST_BUCKET_BYTES = 2**20
"""DistributedDataParallel's defaults."""


@dataclass(frozen=True, slots=True)
class System:
    """How one system cuts, moves, orders and waits.

    `cut`: slices of `slice_numel` elements, whole tensors as MXNet's KVStore has them, or DDP's
    buckets. `order` of what waits for the link: as it came, by layer alone, or by (iteration,
    layer). `per_layer`: a layer's forward waits for its own parameters, not for all. `pull`:
    results are fetched once the whole tensor is in, not sent at once. `synchronous`: updates hold
    every rank's gradients. `incast_control`: senders keep below what a switch port holds.
    `message_s` is processor time a message.
    """

    name: str
    cut: Cut
    collective: Collective
    order: Order
    slice_numel: int = 50_000
    per_layer: bool = True
    pull: bool = False
    synchronous: bool = True
    incast_control: bool = True
    message_s: float = 50e-6


SYSTEMS = {
    system.name: system
    for system in (
        System("ddp", "buckets", "ring", "fifo", per_layer=False),
        System("baseline", "kvstore", "server", "fifo", pull=True),
        System("asgd", "kvstore", "server", "fifo", pull=True, synchronous=False),
        System("slicing", "slices", "server", "fifo"),
        System("p3-static", "slices", "server", "layer"),
        System("p3", "slices", "server", "iteration"),
        System("p3-groups", "slices", "ring", "iteration", slice_numel=400_000),
    )
}
"""By name; `p3` and `p3-groups` are P3's engines `ps` and `groups`."""
