"""What two classes sent while the more urgent of them always had something waiting. Pure.

A band that runs empty leaves the link to the next one, and should: that is no leak of the tree. So
only those intervals between two samples count in which the urgent class sent less than waited in it
at the start. Its queue is first in, first out, so it was not empty for a moment then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from p3_shaper.tcmessage import Counters

PACKET = 65_536
"""May leave between the kernel's reading of a class's queue and of its byte counter."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Counters of both classes, read at once; `time` in seconds."""

    time: float
    top: Counters
    low: Counters


@dataclass(frozen=True, slots=True)
class Shares:
    """Two classes over some time; rates in bits a second, the rest as parts of 1.

    `rate` is of both together and `leak` the lower one's part of it, while the urgent one had a
    backlog; `backlogged` says how much of the time that was. `total` and `lower` are the same two
    over the whole time.
    """

    rate: float
    leak: float
    backlogged: float
    total: float
    lower: float


def shares(samples: Sequence[Sample]) -> Shares:
    """Of two samples or more; `rate` and `leak` are 0 if the urgent class had never a backlog."""
    every = list(pairwise(samples))
    counted = [(a, b) for a, b in every if b.top.bytes - a.top.bytes + PACKET < a.top.backlog]
    rate, leak, seconds = _sum(counted)
    total, lower, whole = _sum(every)
    return Shares(rate, leak, seconds / whole, total, lower)


def _sum(intervals: Sequence[tuple[Sample, Sample]]) -> tuple[float, float, float]:
    """Bits a second, the lower class's part of them, and seconds."""
    seconds = sum(after.time - before.time for before, after in intervals)
    top = sum(after.top.bytes - before.top.bytes for before, after in intervals)
    low = sum(after.low.bytes - before.low.bytes for before, after in intervals)
    sent = top + low
    return 8 * sent / seconds if seconds else 0.0, low / sent if sent else 0.0, seconds
