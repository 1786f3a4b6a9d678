"""Sums contributions in rank order, so that the result is the same bit for bit in every run.

Floating-point addition is not associative: adding in the order of arrival would give every run
its own last bits. A contribution that is early waits; the prefix of ranks that are there is
added at once, so that little is left to do when the last one comes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from p3.arithmetic import Add, Bytes
from p3.slicing import SlicePlan


class ContributionError(ValueError):
    """A contribution that cannot be right; the message says whose, and why."""


@dataclass(slots=True)
class Sum:
    """A slice's sum on its way; `payload` is valid until all `readers` have released it.

    It is for all workers, or for `worker` alone. `encoded` is what travels, if not `payload`.
    """

    index: int
    iteration: int
    payload: Bytes
    buffer: Bytes
    readers: int
    worker: int | None = None
    encoded: Bytes | None = None


@dataclass(slots=True)
class _Pending:
    """One slice's contributions: rank → buffer, None for this rank's own payload."""

    last: int = -1
    iteration: int = -1
    expected: dict[int, Bytes] = field(default_factory=dict)
    here: dict[int, Bytes | None] = field(default_factory=dict)
    total: Bytes | None = None
    following: int = 0


class Aggregator:
    """The slices that rank `rank` serves. One thread.

    `payloads[i]` is a worker's own contribution to slice i; a server that does not work has none.
    `adders` has an addition for every dtype of the plan.
    """

    def __init__(
        self, plan: SlicePlan, rank: int, payloads: Sequence[Bytes], adders: Mapping[str, Add]
    ) -> None:
        self._rank = rank
        self._workers = plan.world_size
        self._payloads = payloads
        self._slices = plan.slices
        self._adders = [adders[piece.dtype] for piece in plan.slices]
        self._pending = {piece.index: _Pending() for piece in plan.slices if piece.server == rank}
        sizes = (plan.slices[index].payload_bytes for index in self._pending)
        self._buffer_bytes = max(sizes, default=0)
        self._free: list[Bytes] = []

    def reserve(self, index: int, iteration: int, rank: int) -> memoryview:
        """Where the contribution of `rank` (another one) is to be received.

        ContributionError for a slice that is not served here, a second contribution, or the wrong
        iteration.
        """
        pending = self._open(index, iteration, rank)
        buffer = self._take()
        pending.expected[rank] = buffer
        return buffer[: self._slices[index].payload_bytes].data

    def arrived(self, index: int, rank: int) -> Sum | None:
        """What was reserved is there; the sum, when it was the last one."""
        pending = self._pending[index]
        pending.here[rank] = pending.expected.pop(rank)
        return self._add_prefix(index, pending)

    def add_own(self, index: int, iteration: int) -> Sum | None:
        """This rank's payload is filled; the sum, when it was the last one."""
        pending = self._open(index, iteration, self._rank)
        pending.here[self._rank] = None
        return self._add_prefix(index, pending)

    def keep(self, total: Sum) -> None:
        """Leave a sum in this rank's own payload: it is one of the readers."""
        np.copyto(self._payloads[total.index], total.payload)
        self.release(total)

    def release(self, total: Sum) -> None:
        """One reader of `total` is done with it."""
        total.readers -= 1
        if total.readers == 0:
            self._free.append(total.buffer)

    def waits_for(self, rank: int) -> int | None:
        """A slice that others have contributed to and worker `rank` has not, if there is one."""
        for index, pending in self._pending.items():
            if pending.iteration >= 0 and not self._has(pending, rank):
                return index
        return None

    def _open(self, index: int, iteration: int, rank: int) -> _Pending:
        """The slice's state, ready for one more contribution."""
        pending = self._pending.get(index)
        if pending is None:
            raise ContributionError(f"rank {self._rank} does not serve slice {index}")
        if rank >= self._workers:
            raise ContributionError(f"rank {rank} contributes to slice {index} and is no worker")
        current = pending.iteration if pending.iteration >= 0 else iteration
        if iteration != current or iteration <= pending.last:
            raise ContributionError(
                f"rank {rank} contributes to slice {index} in iteration {iteration}, "
                f"which is in {max(current, pending.last + 1)}"
            )
        if pending.iteration >= 0 and self._has(pending, rank):
            raise ContributionError(
                f"rank {rank} contributes to slice {index} twice in iteration {iteration}"
            )
        pending.iteration = iteration
        return pending

    @staticmethod
    def _has(pending: _Pending, rank: int) -> bool:
        return rank < pending.following or rank in pending.here or rank in pending.expected

    def _add_prefix(self, index: int, pending: _Pending) -> Sum | None:
        while pending.following in pending.here:
            self._add(index, pending, pending.here.pop(pending.following))
            pending.following += 1
        if pending.following < self._workers:
            return None
        buffer = pending.total
        nbytes = self._slices[index].payload_bytes
        if buffer is None:  # no worker but this one
            buffer = self._take()
            np.copyto(buffer[:nbytes], self._payloads[index])
        self._pending[index] = _Pending(last=pending.iteration)
        return Sum(index, pending.iteration, buffer[:nbytes], buffer, self._workers)

    def _add(self, index: int, pending: _Pending, buffer: Bytes | None) -> None:
        """Add the next rank's contribution: `buffer`, or this rank's own payload."""
        nbytes = self._slices[index].payload_bytes
        if pending.total is not None:
            addend = self._payloads[index] if buffer is None else buffer[:nbytes]
            self._adders[index](pending.total[:nbytes], addend)
            if buffer is not None:
                self._free.append(buffer)
        elif buffer is not None:
            pending.total = buffer
            if pending.following:  # the first was this rank's own, and a + b is b + a
                self._adders[index](buffer[:nbytes], self._payloads[index])

    def _take(self) -> Bytes:
        return self._free.pop() if self._free else np.empty(self._buffer_bytes, dtype=np.uint8)
