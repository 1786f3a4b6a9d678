"""A timeline in the Trace Event Format, as Perfetto and chrome://tracing show it.

Format: "Trace Event Format" (Google, catapult), complete events ("X") and metadata ("M"). Any
thread records; all is written at the end, so that recording is an append.
"""

from __future__ import annotations

import heapq
import itertools
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import msgspec

MAX_SPANS = 200_000
"""Spans kept, about 100 MB; then the oldest are forgotten."""

COMPUTE, WAITS = -2, -1
"""Tracks of what the training thread computes, and of its waits; other tracks are bands."""

_TRACKS_A_RANK = 16
"""Process numbers of a rank in the file, so that files of several ranks can be put together."""


@dataclass(frozen=True, slots=True)
class Span:
    """Something that took from the first of `phases` until `end`, in clock nanoseconds.

    Each phase has a name and a beginning, and lasts until the next; a span without names for
    them has one, "". `track` is a band, COMPUTE or WAITS.
    """

    track: int
    name: str
    phases: Sequence[tuple[str, int]]
    end: int
    arguments: Mapping[str, int | str]


class _Event(msgspec.Struct, omit_defaults=True):
    name: str
    ph: str
    pid: int
    tid: int
    ts: int = -1
    dur: int = -1
    args: Mapping[str, int | str] = {}


def clock() -> int:
    """Nanoseconds of the clock that spans are in."""
    return time.perf_counter_ns()


def file_for(trace: str | Path, rank: int, world_size: int) -> Path:
    """`trace` itself for one rank, else with the rank before its suffix: out.json → out.2.json."""
    path = Path(trace)
    return path if world_size == 1 else path.with_name(f"{path.stem}.{rank}{path.suffix}")


class Timeline:
    """Spans of one rank, kept until `write`. OSError when `file` cannot be written.

    Times in the file are microseconds since 1970: ranks fit together as well as their nodes'
    clocks do.
    """

    def __init__(self, file: Path, rank: int, *, max_spans: int = MAX_SPANS) -> None:
        file.write_bytes(b"")
        self._file = file
        self._rank = rank
        self._numbers = itertools.count()
        self._spans: deque[tuple[int, Span]] = deque(maxlen=max_spans)
        self._names = {COMPUTE: "compute", WAITS: "layer waits"}
        self._epoch_ns = time.time_ns() - clock()

    def name(self, track: int, name: str) -> None:
        """Call a track so."""
        self._names[track] = name

    def add(self, span: Span) -> None:
        """Keep a span. Any thread."""
        self._spans.append((next(self._numbers), span))

    def write(self) -> None:
        """Write all that is kept; what goes wrong is said on standard error."""
        spans = list(self._spans)
        forgotten = spans[0][0] if spans else 0
        if forgotten:
            print(
                f"p3: {self._file} lacks the oldest {forgotten} spans: it keeps "
                f"{self._spans.maxlen}; trace fewer iterations",
                file=sys.stderr,
            )
        try:
            with self._file.open("wb") as out:
                out.write(b'{"displayTimeUnit":"ms","otherData":')
                out.write(msgspec.json.encode({"rank": self._rank, "forgotten": forgotten}))
                out.write(b',"traceEvents":[\n')
                for number, event in enumerate(self._events([span for _, span in spans])):
                    out.write(b",\n" if number else b"")
                    out.write(msgspec.json.encode(event))
                out.write(b"\n]}\n")
        except OSError as error:
            print(f"p3: {self._file} cannot be written: {error.strerror}", file=sys.stderr)

    def _events(self, spans: Sequence[Span]) -> Iterator[_Event]:
        for track, name in sorted(self._names.items()):
            pid = self._rank * _TRACKS_A_RANK + track - COMPUTE
            title = f"rank {self._rank}: {name}"
            yield _Event("process_name", "M", pid, 0, args={"name": title})
            yield _Event("process_sort_index", "M", pid, 0, args={"sort_index": pid})
            own = [span for span in spans if span.track == track]
            # One thread computes: what overlaps there is nested.
            placed = [(1, span) for span in own] if track == COMPUTE else list(lanes(own))
            for lane in sorted({lane for lane, _ in placed}):
                yield _Event("thread_name", "M", pid, lane, args={"name": name})
            for lane, span in placed:
                yield from self._span(pid, lane, span)

    def _span(self, pid: int, lane: int, span: Span) -> Iterator[_Event]:
        # Whole microseconds, or rounding might take a phase out of its span.
        times = [(at + self._epoch_ns) // 1000 for at in (*(at for _, at in span.phases), span.end)]
        whole = times[-1] - times[0]
        yield _Event(span.name, "X", pid, lane, times[0], whole, span.arguments)
        for (name, _), (beginning, end) in zip(span.phases, pairwise(times), strict=True):
            if name:
                yield _Event(name, "X", pid, lane, beginning, end - beginning)


def lanes(spans: Iterable[Span]) -> Iterator[tuple[int, Span]]:
    """Every span with a lane, from 1 on, in which it overlaps no other: as few as will do. Pure."""
    free: list[int] = []
    busy: list[tuple[int, int]] = []
    for span in sorted(spans, key=lambda span: span.phases[0][1]):
        while busy and busy[0][0] <= span.phases[0][1]:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane = heapq.heappop(free) if free else len(busy) + 1
        heapq.heappush(busy, (span.end, lane))
        yield lane, span
