"""The fixed order of a band's slices, which every rank keeps to. Pure."""

from __future__ import annotations

from collections.abc import Sequence


class BandQueue:
    """The slices of one band in their fixed order; tells which may be issued now. Pure.

    A slice handed over before its turn waits; each slice comes once an iteration.
    """

    def __init__(self, order: Sequence[int]) -> None:
        self._order = tuple(order)
        self._early: set[tuple[int, int]] = set()
        self._turn = 0
        self._iteration = 0

    def add(self, index: int, iteration: int) -> list[int]:
        """Slice `index` is there; the slices to issue now, in order."""
        self._early.add((iteration, index))
        issue: list[int] = []
        while (self._iteration, self._order[self._turn]) in self._early:
            self._early.remove((self._iteration, self._order[self._turn]))
            issue.append(self._order[self._turn])
            self._turn += 1
            if self._turn == len(self._order):
                self._turn = 0
                self._iteration += 1
        return issue
