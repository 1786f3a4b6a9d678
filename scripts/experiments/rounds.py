"""Repeated measurements: systems that take turns, and how far apart their rounds are. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import TypeVar

_Item = TypeVar("_Item")


def interleaved(items: Sequence[_Item], rounds: int) -> Iterator[tuple[int, _Item]]:
    """Every item once a round, as (round, item); each round begins with the next item.

    So a slow spell of the machine hits no item alone, and none always follows the same one first.
    """
    for number in range(rounds):
        first = number % max(1, len(items))
        for item in (*items[first:], *items[:first]):
            yield number, item


def spread(values: Sequence[float]) -> float:
    """Largest minus smallest, as a part of the median. StatisticsError for no values."""
    return (max(values) - min(values)) / statistics.median(values)
