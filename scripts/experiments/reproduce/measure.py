"""Measures what is missing: points that share links take turns, each result is kept at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from statistics import fmean, median

from experiments.launch import LaunchError
from experiments.messages import Event, Finished
from experiments.outcome import Outcome
from experiments.reproduce.fleet import Fleet
from experiments.reproduce.points import Measurement, Point, Store, missing
from experiments.reproduce.sampling import Series, sampled
from experiments.rounds import interleaved

TRIES = 2
"""A failure ends the run only when it comes again on fresh ranks."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One repeat of a point; `number` counts them."""

    point: Point
    repeat: int


def turns(points: Sequence[Point], repeats: int, there: Sequence[Measurement]) -> list[list[Turn]]:
    """What is to be measured, in blocks that share nodes, links and agents or their absence.

    Within a round of a link every point comes once, and rounds begin with another point each time;
    agents are there in the first or the second half of it, by turns. Pure.
    """
    counts: dict[Point, int] = {}
    for one in there:
        counts[one.point] = counts.get(one.point, 0) + 1
    blocks: list[list[Turn]] = []
    wanted = list(dict.fromkeys(missing(points, repeats, there)))
    wanted.sort(key=_links)
    for _, group in groupby(wanted, key=_links):
        blocks += _blocks(list(group), repeats, counts)
    return blocks


def _blocks(points: list[Point], repeats: int, counts: dict[Point, int]) -> Iterator[list[Turn]]:
    rounds: dict[int, list[Point]] = {}
    for number, point in interleaved(points, repeats):
        if number >= counts.get(point, 0):
            rounds.setdefault(number, []).append(point)
    for number, members in rounds.items():
        for agents in (number % 2 == 0, number % 2 == 1):
            block = [Turn(point, number) for point in members if point.kind.uses_bands is agents]
            if block:
                yield block


def _links(point: Point) -> tuple[int, int, int]:
    return point.nodes, point.rate.bits_per_second, point.port_buffer


class Progress:
    """Told of everything; shows nothing by itself."""

    def begins(self, turn: Turn) -> None:
        """A turn begins."""

    def on_event(self, event: Event) -> None:
        """A rank told something."""

    def fails(self, turn: Turn, reason: str) -> None:
        """A turn failed, and is tried again."""


@dataclass(slots=True)
class Measuring:
    """Measures blocks of turns and keeps what it finds in `store`. Logs go to `logs`.

    Raises ClusterError, launch.LaunchError.
    """

    store: Store[Measurement]
    logs: Path
    progress: Progress
    _fleets: ExitStack = field(default_factory=ExitStack)
    _fleet: Fleet | None = None
    _nodes: int = 0

    def run(self, blocks: Sequence[Sequence[Turn]]) -> None:
        """All of them."""
        try:
            for block in blocks:
                self._block(list(block))
        finally:
            self._end_fleet()

    def _block(self, block: list[Turn]) -> None:
        failed = 0
        while block:
            try:
                self._some(block)
            except LaunchError as error:
                self._end_fleet()
                failed += 1
                if failed == TRIES:
                    raise
                self.progress.fails(block[0], str(error))

    def _some(self, block: list[Turn]) -> None:
        """Measure the block's turns and take them out of it."""
        first = block[0].point
        fleet = self._fleet_of(first.nodes)
        fleet.reshape(first.rate, first.port_buffer)
        with fleet.agents(first.rate) if first.kind.uses_bands else nullcontext():
            while block:
                self.progress.begins(block[0])
                self.store.add(measure(fleet, block[0], self.progress.on_event))
                del block[0]

    def _fleet_of(self, nodes: int) -> Fleet:
        if self._fleet is None or self._nodes != nodes:
            self._end_fleet()
            self._fleet = self._fleets.enter_context(Fleet(nodes, self.logs))
            self._nodes = nodes
        return self._fleet

    def _end_fleet(self) -> None:
        self._fleet = None
        self._fleets.close()


def measure(fleet: Fleet, turn: Turn, on_event: Callable[[Event], None]) -> Measurement:
    """One turn on a fleet whose links and agents are as its point wants them."""
    point = turn.point
    agents = point.kind.uses_bands
    with sampled(fleet.first, point.rate, point.sample_s, agents=agents) as series:
        outcome = Outcome(tuple(fleet.tell(point, on_event)))
    return _measurement(turn, outcome, series)


def _measurement(turn: Turn, outcome: Outcome, series: Series) -> Measurement:
    first: Finished = outcome.ranks[0]
    steady = outcome.steady_times
    begin = first.starts[len(first.starts) - 1 - len(steady)]
    point = turn.point
    stretch = point.scale * point.slow
    ranks = [Outcome((rank,)) for rank in outcome.ranks]
    return Measurement(
        point=point,
        repeat=turn.repeat,
        # Ranks of an asynchronous training go at paces of their own.
        iteration_s=fmean(median(rank.steady_times) for rank in ranks),
        times_s=steady,
        cpu_s=outcome.cpu_s,
        megabytes=outcome.megabytes_sent / point.iterations,
        use=series.use(point.rate, stretch, begin, first.starts[-1]),
    )
