"""How a Gloo group sums one slice over the ranks: around a ring, or directly.

A ring all-reduce sends the least bytes, and each receiver has one sender, but a slice takes
2 (N - 1) messages one after the other, each behind what the links and switch ports already
hold. A small slice is all delay: there every rank sends its own to every other at once, and each
adds them up in rank order, so that all get the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from p3.gloo import GlooGroup, Work
from p3.slice_trace import SliceTrace
from p3.systems import DIRECT_BYTES


class Sum(Protocol):
    """One slice's sum, once an iteration."""

    sent_bytes: int
    """Payload bytes that each rank sends."""

    def start(self, group: GlooGroup) -> Work:
        """Issue it; the payload is not to be touched until `finish`."""
        ...

    def finish(self) -> None:
        """The collective is done: leave the sum in the payload."""
        ...


def choose_sum(payload: torch.Tensor, ranks: int) -> Sum:
    """The way for `payload` (1-D), the same on every rank."""
    if (ranks - 1) * payload.nbytes <= DIRECT_BYTES:
        return DirectSum(payload, ranks)
    return RingSum(payload, ranks)


class RingSum:
    """Gloo's all-reduce, in place (gloo/allreduce.cc, the ring)."""

    def __init__(self, payload: torch.Tensor, ranks: int) -> None:
        self._tensors = [payload]
        self.sent_bytes = payload.nbytes * 2 * (ranks - 1) // ranks

    def start(self, group: GlooGroup) -> Work:
        """Issue it."""
        return group.allreduce(self._tensors)

    def finish(self) -> None:
        """It is in place."""


class DirectSum:
    """Everyone's payload to everyone (gloo/alltoall.cc posts all messages at once)."""

    def __init__(self, payload: torch.Tensor, ranks: int) -> None:
        self._payload = payload
        self._copies = payload.new_empty((ranks, payload.numel()))
        self._arrived = torch.empty_like(self._copies)
        self._no_splits: Sequence[int] = []
        self.sent_bytes = payload.nbytes * (ranks - 1)

    def start(self, group: GlooGroup) -> Work:
        """Issue it."""
        self._copies.copy_(self._payload)
        return group.alltoall_base(self._arrived, self._copies, self._no_splits, self._no_splits)

    def finish(self) -> None:
        """Add up in rank order."""
        self._payload.copy_(self._arrived[0])
        for part in self._arrived[1:]:
            self._payload.add_(part)


class TracedSum:
    """Tells when slice `index` is issued; what Gloo does with it until it is done, nobody hears."""

    def __init__(self, way: Sum, trace: SliceTrace, index: int) -> None:
        self._way = way
        self._trace = trace
        self._index = index
        self.sent_bytes = way.sent_bytes

    def start(self, group: GlooGroup) -> Work:
        """Issue it."""
        self._trace.enters(self._index, "all-reduce")
        return self._way.start(group)

    def finish(self) -> None:
        """See Sum."""
        self._way.finish()
