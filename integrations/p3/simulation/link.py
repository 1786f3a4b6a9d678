"""A node's link in a discrete-event model: bytes flow, and what is most urgent flows first."""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

_ROUNDING = 1e-9
"""Of a job's work: less than this is left over by arithmetic alone."""


@dataclass(slots=True)
class Job:
    """Bytes that take `work_s` seconds of the whole link, and at most `share` of it, 0 … 1.

    Jobs of one flow are served by band, then in order of `key`; flows share the link evenly.
    What has begun to leave stays before all of its band that has not: it is in the band's sockets.
    """

    flow: int
    key: tuple[int, ...]
    work_s: float
    share: float
    then: Callable[[], None]
    band: int = 0
    left_s: float = field(init=False)
    rate: float = field(init=False, default=0.0)
    begun: float = field(init=False, default=float("inf"))
    """Which of all jobs it was to begin."""

    def __post_init__(self) -> None:
        self.left_s = self.work_s

    def __lt__(self, other: Job) -> bool:
        return (self.band, self.begun, self.key) < (other.band, other.begun, other.key)

    @property
    def is_done(self) -> bool:
        """Nothing is left of it."""
        return self.left_s <= _ROUNDING * self.work_s


class Clock:
    """Callbacks in order of time, and one link whose jobs end when they do."""

    def __init__(self) -> None:
        self.now = 0.0
        self.busy_s = 0.0
        """Seconds of the whole link used so far."""
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._flows: dict[int, list[Job]] = {}
        self._served: list[Job] = []
        self._is_stale = False
        self._begun = 0

    @property
    def is_idle(self) -> bool:
        """Nothing is on the link."""
        return not self._flows

    def after(self, seconds: float, then: Callable[[], None]) -> None:
        """Call `then` in so many seconds."""
        self._count += 1
        heapq.heappush(self._events, (self.now + seconds, self._count, then))

    def send(self, job: Job) -> None:
        """Put it on the link; its `then` is called when all of it has left."""
        insort(self._flows.setdefault(job.flow, []), job)
        self._is_stale = True

    def step(self) -> bool:
        """Go on to the next callback or the next end of a job; False when there is none."""
        if self._is_stale:
            self._serve()
        ends = min((job.left_s / job.rate for job in self._served), default=float("inf"))
        if not self._events and not self._served:
            return False
        if self._events and self._events[0][0] <= self.now + ends:
            when, _, then = heapq.heappop(self._events)
            self._move(when - self.now)
            self.now = when
            then()
        else:
            self._move(ends)
            self.now += ends
            self._end()
        return True

    def _move(self, seconds: float) -> None:
        for job in self._served:
            moved = job.rate * seconds
            job.left_s -= moved
            self.busy_s += moved

    def _end(self) -> None:
        done = [job for job in self._served if job.is_done]
        for job in done:
            waiting = self._flows[job.flow]
            waiting.remove(job)
            if not waiting:
                del self._flows[job.flow]
        self._is_stale = True
        for job in done:
            job.then()

    def _serve(self) -> None:
        """Give each flow its share, and in it each job what it can use, most urgent first."""
        self._is_stale = False
        self._served = []
        for flow, share in self._shares():
            free = share
            for job in self._flows[flow]:
                job.rate = min(job.share, free)
                free -= job.rate
                if job.begun == float("inf"):
                    self._begun += 1
                    job.begun = self._begun
                self._served.append(job)
                if free <= _ROUNDING:
                    break

    def _shares(self) -> Iterator[tuple[int, float]]:
        """What each flow gets: as much as the others, or all that it can use if that is less."""
        if len(self._flows) == 1:
            yield next(iter(self._flows)), 1.0
            return
        wants = sorted((_want(jobs), flow) for flow, jobs in self._flows.items())
        free = 1.0
        for place, (want, flow) in enumerate(wants):
            share = min(want, free / (len(wants) - place))
            free -= share
            yield flow, share


def _want(jobs: list[Job]) -> float:
    want = 0.0
    for job in jobs:
        want += job.share
        if want >= 1:
            return 1.0
    return want
