"""A server that updates: sums wait there until all workers have called step()."""

from __future__ import annotations

from p3.aggregator import Sum
from p3.commits import Commit, Commits
from p3.server_update import Recipe, SliceOptimizer
from p3.slicing import SlicePlan


class Updates:
    """The optimizer of server `rank` and what waits for it. One thread."""

    def __init__(self, plan: SlicePlan, rank: int, recipe: Recipe) -> None:
        self.optimizer = SliceOptimizer(plan, rank, recipe)
        self._commits = Commits(plan.world_size)
        self._held: list[Sum] = []

    def stepped(self, worker: int, iteration: int, commit: Commit) -> list[Sum]:
        """A worker called step(); the sums that are parameters now, most urgent first.

        CommitError or SettingsError when it cannot be.
        """
        if not self._commits.add(worker, iteration, commit):
            return []
        held, self._held = self._held, []
        return [
            total
            for one in sorted(held, key=lambda total: total.index)
            for total in self.summed(one)
        ]

    def summed(self, total: Sum) -> list[Sum]:
        """A sum is complete: the same, holding parameters, if all workers called step()."""
        commit = self._commits.agreed(total.iteration)
        if commit is None:
            self._held.append(total)
            return []
        self.optimizer.apply(total.index, total.payload, commit)
        return [total]

    def waits_for(self, worker: int) -> int | None:
        """An iteration in which others called step() and `worker` did not, if there is one."""
        return self._commits.waits_for(worker)
