"""A slice's way on the timeline, as the shim and an engine tell of it. No torch."""

from __future__ import annotations

from collections.abc import Sequence

from p3.schedule import Schedule
from p3.slicing import Slice, SlicePlan
from p3.timeline import Span, Timeline, clock
from p3_shaper.bands import BandTable

Phases = list[tuple[str, int]]
"""Names, and when each began by `timeline.clock`."""


class SliceTrace:
    """Puts one job's slices on a timeline, each on its band's track, with phases. Any thread."""

    def __init__(
        self, timeline: Timeline, plan: SlicePlan, schedule: Schedule, table: BandTable
    ) -> None:
        self._timeline = timeline
        self._slices = plan.slices
        self._bands = [schedule.push_band(piece.layer) for piece in plan.slices]
        self._labels = [label(plan, piece) for piece in plan.slices]
        self._under_way: dict[int, tuple[int, Phases]] = {}
        for band in table.bands[: schedule.bands]:
            timeline.name(band.index, f"band {band.index} (DSCP {band.dscp})")

    def begins(self, index: int, iteration: int, phase: str) -> None:
        """Slice `index` of `iteration` is handed over, and in `phase` from now on."""
        self._under_way[index] = (iteration, [(phase, clock())])

    def enters(self, index: int, phase: str) -> None:
        """Slice `index` is in `phase` from now on."""
        if (known := self._under_way.get(index)) is not None:
            known[1].append((phase, clock()))

    def ends(self, index: int) -> None:
        """Slice `index` is done. One that was given up may still be: an engine has threads."""
        if (known := self._under_way.pop(index, None)) is not None:
            iteration, phases = known
            self.beside("", index, iteration, phases)

    def gives_up(self) -> None:
        """No slice will be done any more."""
        while self._under_way:
            index, (iteration, phases) = self._under_way.popitem()
            self.beside("unfinished:", index, iteration, phases)

    def beside(
        self, what: str, index: int, iteration: int, phases: Sequence[tuple[str, int]]
    ) -> None:
        """Something else about slice `index` took from its first phase until now."""
        arguments = {
            "slice": index,
            "iteration": iteration,
            "bytes": self._slices[index].payload_bytes,
        }
        name = f"{what} {self._labels[index]}" if what else self._labels[index]
        self._timeline.add(Span(self._bands[index], name, phases, clock(), arguments))


def label(plan: SlicePlan, piece: Slice) -> str:
    """What to call a slice: its first parameter, which elements of it, how many parameters more."""
    first, *more = piece.segments
    name = plan.parameters[first.parameter].name
    if first.numel < plan.parameters[first.parameter].numel:
        name += f"[{first.start}:{first.start + first.numel}]"
    return f"{name} +{len(more)}" if more else name
