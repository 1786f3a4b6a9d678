"""A server that updates: sums wait there until all workers have called step()."""

from __future__ import annotations

import heapq

from p3.aggregator import Sum
from p3.commits import Commit, Commits
from p3.server_update import Recipe, SliceOptimizer
from p3.slicing import SlicePlan


class Updates:
    """The optimizer of server `rank` and what waits for it. One thread."""

    def __init__(self, plan: SlicePlan, rank: int, recipe: Recipe) -> None:
        self.optimizer = SliceOptimizer(plan, rank, recipe)
        self._commits = Commits(plan.world_size)
        self._waiting: list[tuple[int, int, Sum]] = []

    def stepped(self, worker: int, iteration: int, commit: Commit) -> None:
        """A worker called step(). CommitError or SettingsError when it cannot be."""
        self._commits.add(worker, iteration, commit)

    def summed(self, total: Sum) -> None:
        """A sum is complete."""
        heapq.heappush(self._waiting, (total.iteration, total.index, total))

    def next(self) -> Sum | None:
        """The most urgent sum of which all workers called step(), now parameters; or None."""
        if not self._waiting:
            return None
        iteration, _, total = self._waiting[0]
        commit = self._commits.agreed(iteration)
        if commit is None:
            return None
        heapq.heappop(self._waiting)
        self.optimizer.apply(total.index, total.payload, commit)
        return total

    def waits_for(self, worker: int) -> int | None:
        """An iteration in which others called step() and `worker` did not, if there is one."""
        return self._commits.waits_for(worker)
