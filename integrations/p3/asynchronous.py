"""Asynchronous SGD on P3's transport, for comparison: a server waits for nobody.

Each gradient is applied as it comes, and the parameters go back to the worker that sent it. A
worker's gradient counts 1/N, so that an epoch moves as far as a synchronous one. The settings are
those of the last step() that the server has heard of.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from p3.aggregator import Aggregator, ContributionError, Sum
from p3.arithmetic import Add, Bytes
from p3.commits import Commit, SettingsError
from p3.server_update import Recipe, SliceOptimizer
from p3.slicing import SlicePlan
from p3.updates import Updates
from p3.updating import UpdatingServer


class Separate(Aggregator):
    """Contributions that are not added up: each is a `Sum` of its own, for its worker alone."""

    def __init__(
        self, plan: SlicePlan, rank: int, payloads: Sequence[Bytes], adders: Mapping[str, Add]
    ) -> None:
        super().__init__(plan, rank, payloads, adders)
        self._coming: dict[tuple[int, int], tuple[int, Bytes]] = {}
        self._last: dict[tuple[int, int], int] = {}

    def reserve(self, index: int, iteration: int, rank: int) -> memoryview:
        """See Aggregator."""
        self._check(index, iteration, rank)
        buffer = self._take()
        self._coming[index, rank] = (iteration, buffer)
        return buffer[: self._slices[index].payload_bytes].data

    def arrived(self, index: int, rank: int) -> Sum:
        """What was reserved is there."""
        iteration, buffer = self._coming.pop((index, rank))
        return self._single(index, iteration, rank, buffer)

    def add_own(self, index: int, iteration: int) -> Sum:
        """This rank's payload is filled."""
        self._check(index, iteration, self._rank)
        buffer = self._take()
        np.copyto(buffer[: self._slices[index].payload_bytes], self._payloads[index])
        return self._single(index, iteration, self._rank, buffer)

    def waits_for(self, rank: int) -> int | None:  # noqa: ARG002
        """Nothing waits for anybody."""
        return None

    def _single(self, index: int, iteration: int, rank: int, buffer: Bytes) -> Sum:
        payload = buffer[: self._slices[index].payload_bytes]
        return Sum(index, iteration, payload, buffer, 1, worker=rank)

    def _check(self, index: int, iteration: int, rank: int) -> None:
        if index not in self._pending or rank >= self._workers:
            raise ContributionError(f"rank {self._rank} does not serve rank {rank}'s slice {index}")
        if iteration <= self._last.get((index, rank), -1):
            raise ContributionError(f"rank {rank} contributes to slice {index} of {iteration} late")
        self._last[index, rank] = iteration


class _OwnParameters(SliceOptimizer):
    """Works on a copy: the worker beside it computes with parameters that stay as they came."""

    def attach(self, flats: Mapping[int, torch.Tensor]) -> None:
        """Copy these parameters, unless they are here already."""
        new = {number: flats[number] for number in flats.keys() - self._attached}
        self._attached |= new.keys()
        for runs in self._runs.values():
            for place, run in runs.items():
                if place.parameter in new:
                    run.data = place.of(new[place.parameter]).clone()


class Immediate(Updates):
    """Contributions are applied in the order in which they came, from the first step() on."""

    def __init__(self, plan: SlicePlan, rank: int, recipe: Recipe) -> None:
        super().__init__(plan, rank, recipe)
        self.optimizer = _OwnParameters(plan, rank, recipe)
        self._queue: deque[Sum] = deque()
        self._latest: Commit | None = None

    def stepped(self, worker: int, iteration: int, commit: Commit) -> None:
        """A worker called step(). SettingsError when it drops gradients: they are applied."""
        if commit.groups is None:
            raise SettingsError(
                f"rank {worker} drops the gradients of iteration {iteration}, which asynchronous "
                "SGD may have applied: step() after each backward pass"
            )
        self._latest = Commit(commit.groups)

    def summed(self, total: Sum) -> None:
        """A contribution is there."""
        self._queue.append(total)

    def next(self) -> Sum | None:
        """The next contribution, now parameters; None while no settings are known."""
        if self._latest is None or not self._queue:
            return None
        total = self._queue.popleft()
        self.optimizer.apply(total.index, total.payload, self._latest)
        return total

    def waits_for(self, worker: int) -> int | None:  # noqa: ARG002
        """Nothing waits for anybody."""
        return None


class AsynchronousServer(UpdatingServer):
    """As UpdatingServer, but a worker that is slow, or away for good, holds nobody up."""

    updates_kind = Immediate

    def _new_aggregator(self) -> Separate:
        job = self._job
        return Separate(job.plan, job.rank, job.payloads, job.adders)
