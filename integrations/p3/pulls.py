"""Results that are asked for: MXNet's KVStore's notify and pull, in place of sums sent at once.

A server that has a slice's sum tells the workers, and keeps it. A worker asks for a parameter's
slices once all of them have notified (paper section 4.2: the pull of a layer leaves only after all
of its pieces). Pure: no I/O.
"""

from __future__ import annotations

from p3.aggregator import Sum
from p3.slicing import SlicePlan


class PullError(ValueError):
    """A request that cannot be right; the message says whose, and why."""


class Pulls:
    """What rank `rank` offers as a server, and is told of as a worker. One thread.

    Every slice of `plan` is a part of one parameter (`kvstore.make_kvstore_plan`).
    """

    def __init__(self, plan: SlicePlan, rank: int) -> None:
        self._slices = plan.slices
        self._rank = rank
        self._parts = plan.slices_of()
        self._left = [len(parts) for parts in self._parts]
        self._offers: dict[tuple[int, int], Sum] = {}

    @property
    def offered(self) -> bool:
        """Whether some worker has yet to ask for something."""
        return bool(self._offers)

    def offer(self, worker: int, total: Sum) -> None:
        """Keep `total` until `worker` asks for it."""
        self._offers[worker, total.index] = total

    def take(self, worker: int, index: int, iteration: int) -> Sum:
        """What `worker` asks for. PullError when it was not offered."""
        total = self._offers.get((worker, index))
        if total is None or total.iteration != iteration:
            raise PullError(
                f"rank {worker} asks for slice {index} of iteration {iteration}, which was not "
                "offered to it"
            )
        del self._offers[worker, index]
        return total

    def drop(self, worker: int) -> list[Sum]:
        """What `worker`, which has ended, will not ask for any more."""
        keys = [key for key in self._offers if key[0] == worker]
        return [self._offers.pop(key) for key in keys]

    def notified(self, index: int) -> list[int]:
        """Slice `index` is complete at its server; the slices of others to ask for now."""
        parameter = self._slices[index].segments[0].parameter
        self._left[parameter] -= 1
        if self._left[parameter]:
            return []
        self._left[parameter] = len(self._parts[parameter])
        return [part for part in self._parts[parameter] if self._slices[part].server != self._rank]
