"""Ways to train data-parallel, as values that can be simulated, and measured. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from p3.cuts import Cutting, least_delay
from p3.schedule import Order

Cut = Literal["slices", "kvstore", "buckets"]
Collective = Literal["ring", "server"]

KVSTORE_SPLIT_NUMEL = 1_000_000
"""MXNet's KVStore splits a tensor over all servers from this size on (paper section 4.2)."""
BUCKET_BYTES = 25 * 2**20
FIRST_BUCKET_BYTES = 2**20
"""DistributedDataParallel's defaults."""
DIRECT_BYTES = 64_000
"""What all others may send to one rank at once: a quarter of what a shallow switch port holds."""


@dataclass(frozen=True, slots=True)
class System:
    """How one system cuts, moves, orders and waits.

    `cut`: slices of `slice_numel` elements, whole tensors as MXNet's KVStore has them, or DDP's
    buckets. `order` of what waits for the link: as it came, by layer alone, or by (iteration,
    layer). `agents`: the kernel keeps bands apart; without, bands' sockets share the link evenly.
    `per_layer`: a layer's forward waits for its own parameters, not for all. `pull`: results are
    fetched once the whole tensor is in, not sent at once. `synchronous`: updates hold every rank's
    gradients. `incast_control`: senders keep below what a switch port holds. `message_s` is
    processor time a message, `cutting` decides which layers share a band.
    """

    name: str
    title: str
    cut: Cut
    collective: Collective
    order: Order
    slice_numel: int = 50_000
    agents: bool = True
    per_layer: bool = True
    pull: bool = False
    synchronous: bool = True
    incast_control: bool = True
    message_s: float = 50e-6
    bucket_bytes: int = BUCKET_BYTES
    first_bucket_bytes: int = FIRST_BUCKET_BYTES
    cutting: Cutting = least_delay

    @property
    def uses_bands(self) -> bool:
        """Whether agents make a difference, and are there."""
        return self.agents and self.order != "fifo"

    @property
    def shares_link(self) -> bool:
        """Whether urgent and other bytes are on the link side by side."""
        return self.order == "iteration" and not self.agents


_P3 = System("p3", "P3, parameter server", "slices", "server", "iteration")
_GROUPS = System("p3-groups", "P3, groups", "slices", "ring", "iteration", slice_numel=400_000)

SYSTEMS = {
    system.name: system
    for system in (
        System("ddp", "PyTorch DDP", "buckets", "ring", "fifo", per_layer=False),
        System("baseline", "MXNet KVStore", "kvstore", "server", "fifo", pull=True),
        System(
            "asgd", "asynchronous SGD", "kvstore", "server", "fifo", pull=True, synchronous=False
        ),
        System("slicing", "slices, no priority", "slices", "server", "fifo"),
        System("p3-static", "P3, by layer alone", "slices", "server", "layer"),
        replace(_P3, name="p3-no-agents", title="P3, parameter server, no agents", agents=False),
        _P3,
        replace(_GROUPS, name="p3-groups-no-agents", title="P3, groups, no agents", agents=False),
        _GROUPS,
    )
}
"""By name; `p3` and `p3-groups` are P3's engines `ps` and `groups`."""


def with_buckets(system: System, bucket_bytes: int) -> System:
    """`system` with every bucket of one size, as DDP has them where its user names one."""
    return replace(system, bucket_bytes=bucket_bytes, first_bucket_bytes=bucket_bytes)
