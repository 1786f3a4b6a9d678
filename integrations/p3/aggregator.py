"""Sums contributions in rank order, so that the result is the same bit for bit in every run.

Floating-point addition is not associative: adding in the order of arrival would give every run
its own last bits. A contribution that is early waits; the prefix of ranks that are there is
added at once, so that little is left to do when the last one comes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from p3.slicing import SlicePlan

SERIAL_NUMEL = 32_000
"""Torch shares an addition of 32,768 elements or more among threads, which costs more than it
brings for a slice; parts below that stay in the calling thread."""


class ContributionError(ValueError):
    """A contribution that cannot be right; the message says whose, and why."""


class Buffer:
    """Memory for one payload, used again and again."""

    def __init__(self, nbytes: int) -> None:
        self._memory = torch.empty(nbytes, dtype=torch.uint8)
        self._view = self._memory.numpy().data

    def view(self, nbytes: int) -> memoryview:
        """The first `nbytes` as bytes."""
        return self._view[:nbytes]

    def tensor(self, like: torch.Tensor) -> torch.Tensor:
        """The same memory as a tensor with the dtype and number of elements of `like`."""
        return self._memory[: like.numel() * like.element_size()].view(like.dtype)


@dataclass(slots=True)
class Sum:
    """A slice's sum on its way; `tensor` and `view`, which are one memory, are valid until all
    `readers` have released it."""

    index: int
    iteration: int
    tensor: torch.Tensor
    view: memoryview
    buffer: Buffer
    readers: int


@dataclass(slots=True)
class _Pending:
    """One slice's contributions: rank → buffer, None for this rank's own payload."""

    last: int = -1
    iteration: int = -1
    expected: dict[int, Buffer] = field(default_factory=dict)
    here: dict[int, Buffer | None] = field(default_factory=dict)
    total: Buffer | None = None
    following: int = 0


class Aggregator:
    """The slices that rank `rank` serves. One thread.

    `payloads[i]` is a worker's own contribution to slice i; a server that does not work only
    tells by them what the slices are, and they may be on the meta device.
    """

    def __init__(self, plan: SlicePlan, rank: int, payloads: Sequence[torch.Tensor]) -> None:
        self._rank = rank
        self._workers = plan.world_size
        self._payloads = payloads
        self._pending = {piece.index: _Pending() for piece in plan.slices if piece.server == rank}
        sizes = (plan.slices[index].payload_bytes for index in self._pending)
        self._buffer_bytes = max(sizes, default=0)
        self._free: list[Buffer] = []

    def reserve(self, index: int, iteration: int, rank: int) -> memoryview:
        """Where the contribution of `rank` (another one) is to be received.

        ContributionError for a slice that is not served here, a second contribution, or the wrong
        iteration.
        """
        pending = self._open(index, iteration, rank)
        buffer = self._take()
        pending.expected[rank] = buffer
        return buffer.view(self._nbytes(index))

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
        payload = self._payloads[total.index]
        for part, result in _parts(payload, total.tensor):
            part.copy_(result)
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
        assert buffer is not None
        tensor, view = buffer.tensor(self._payloads[index]), buffer.view(self._nbytes(index))
        self._pending[index] = _Pending(last=pending.iteration)
        return Sum(index, pending.iteration, tensor, view, buffer, self._workers)

    def _add(self, index: int, pending: _Pending, buffer: Buffer | None) -> None:
        """Add the next rank's contribution: `buffer`, or this rank's own payload."""
        payload = self._payloads[index]
        if pending.total is None:
            if buffer is None:
                buffer = self._take()
                for part, own in _parts(buffer.tensor(payload), payload):
                    part.copy_(own)
            pending.total = buffer
            return
        source = payload if buffer is None else buffer.tensor(payload)
        for part, addend in _parts(pending.total.tensor(payload), source):
            part.add_(addend)
        if buffer is not None:
            self._free.append(buffer)

    def _nbytes(self, index: int) -> int:
        payload = self._payloads[index]
        return payload.numel() * payload.element_size()

    def _take(self) -> Buffer:
        return self._free.pop() if self._free else Buffer(self._buffer_bytes)


def _parts(
    target: torch.Tensor, source: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    return zip(torch.split(target, SERIAL_NUMEL), torch.split(source, SERIAL_NUMEL), strict=True)
