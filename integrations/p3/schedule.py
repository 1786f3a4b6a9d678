"""Priorities → bands. Pure: no I/O.

Time is counted in layers: iteration k's forward of layer l is at position 2kL + l, its backward
at 2kL + 2L - 1 - l (L layers). A slice of layer l handed over in iteration k is due when the
next forward needs it: 2(k+1)L + l. Inside an iteration the layer decides the band, and a slice
keeps it: moved to another band, and so to another socket, the rest of a layer would overtake
what of it already waits in the kernel. What is due and still owed to others goes before all:
those nodes wait for it, and this one may already hand over slices of the next iteration. A
static priority by layer alone lets nodes drift apart there (the paper's section 4 has that
fault).
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from p3.cuts import Cutting, least_delay
from p3.slicing import SlicePlan

Order = Literal["fifo", "layer", "iteration"]
"""What goes first: as it came, by layer alone (the paper's), or by iteration and then layer."""

_ORDER_WEIGHT = 1e-3


@dataclass(frozen=True, slots=True)
class Schedule:
    """Bands by layer: `cuts[b]` is the first layer, in forward order, behind band b.

    `ready[l]` is the part of a backward pass after which layer l's gradient is there, 0 … 1.
    `order` other than "iteration" is for comparison; "fifo" has one band.
    """

    layers: int
    cuts: tuple[int, ...]
    ready: tuple[float, ...] = ()
    order: Order = "iteration"

    @property
    def bands(self) -> int:
        """How many bands are in use."""
        return len(self.cuts) + 1

    def forward_position(self, iteration: int, layer: int) -> int:
        """Where a node is that computes `layer` forward."""
        return 2 * iteration * self.layers + layer

    def backward_position(self, iteration: int, layer: int) -> int:
        """Where a node is that has just finished `layer` backward."""
        return 2 * (iteration + 1) * self.layers - 1 - layer

    def due(self, iteration: int, layer: int) -> int:
        """The position that needs iteration `iteration`'s update of `layer`: the priority."""
        if self.order == "fifo":
            return 0
        if self.order == "layer":
            return layer
        return self.forward_position(iteration + 1, layer)

    def band(self, due: int, now: int) -> int:
        """The band for what is due at `due`, at position `now`; 0 if it should be there by now."""
        owed = self.order == "iteration" and now >= due
        return 0 if owed else self.push_band(due % (2 * self.layers))

    def push_band(self, layer: int) -> int:
        """The band of a gradient handed over as it appears: the same on every rank."""
        return bisect_right(self.cuts, layer)


def make_schedule(
    layer_bytes: Sequence[int],
    bands: int,
    starts: Sequence[float] | None = None,
    order: Order = "iteration",
    cutting: Cutting = least_delay,
) -> Schedule:
    """Cut layers (bytes each, in forward order) into at most `bands` runs, as `cutting` says.

    `starts` is when a forward pass comes to each layer (any unit; evenly spaced if None). First
    come, first served needs no bands, and gets one. ValueError when `bands` is below 1.
    """
    if bands < 1:
        raise ValueError(f"{bands} bands: there is at least 1")
    layers = len(layer_bytes)
    if layers == 0:
        return Schedule(0, (), order=order)
    needed = np.asarray(range(layers) if starts is None else starts, dtype=np.float64)
    # Where times say nothing, forward order does.
    needed = needed + np.arange(layers) * (np.ptp(needed) or 1.0) * _ORDER_WEIGHT / layers
    # Backward takes the layers' times in turn, from the last one's on; the last one's own end
    # is not known, and taken for the mean.
    whole = float(np.ptp(needed)) * (1 + 1 / layers) or 1.0
    ready = 1 - (needed - needed[0]) / whole
    sizes = np.asarray(layer_bytes, dtype=np.float64)
    cuts = () if order == "fifo" else cutting(sizes, needed, bands)
    return Schedule(layers, cuts, tuple(ready.tolist()), order)


def service_order(plan: SlicePlan, schedule: Schedule) -> list[int]:
    """Slices in the order in which a link would send them, always the most urgent that is there.

    For engines whose ranks must agree on an order beforehand. The link modelled takes as long for
    all slices as the devices for an iteration (backward takes two thirds of it): faster links
    seldom have a choice, and slower ones differ little from it.
    """
    return link_order([(piece.layer, piece.payload_bytes) for piece in plan.slices], schedule)


def link_order(pieces: Sequence[tuple[int, int]], schedule: Schedule) -> list[int]:
    """`service_order` for pieces given as layer and bytes: their indices."""
    total = sum(size for _, size in pieces) or 1
    coming = sorted(
        range(len(pieces)), key=lambda index: (schedule.ready[pieces[index][0]], -index)
    )
    coming.reverse()
    waiting: list[tuple[int, int]] = []
    order: list[int] = []
    now = 0.0
    while coming or waiting:
        if not waiting:
            now = max(now, schedule.ready[pieces[coming[-1]][0]])
        while coming and schedule.ready[pieces[coming[-1]][0]] <= now:
            heapq.heappush(waiting, (pieces[coming[-1]][0], coming.pop()))
        order.append(heapq.heappop(waiting)[1])
        now += 1.5 * pieces[order[-1]][1] / total
    return order
