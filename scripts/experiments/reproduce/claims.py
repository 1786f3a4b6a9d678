"""What the experiments are to show, and what they show. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from experiments.reproduce import paper
from experiments.reproduce.points import USUAL_CUTTING, Point
from experiments.reproduce.summary import Row
from experiments.systems import SHALLOW_PORT

APART = 1.2
"""Computing and communication differ by more than this factor: then they can hide all of it."""

ALIKE = 0.97
"""Nearer than this, medians of interleaved repeats are not told apart."""


class Claim(msgspec.Struct, frozen=True):
    """`found` should be `wanted` at least."""

    text: str
    wanted: float
    found: float

    @property
    def holds(self) -> bool:
        """To the two places that are printed."""
        return round(self.found, 2) >= self.wanted


def claims(rows: Mapping[Point, Row]) -> list[Claim]:
    """Of figure 7's points at the default port buffer, as far as they are measured."""
    found: list[Claim] = []
    settings: dict[tuple[str, float], dict[str, Row]] = {}
    points: dict[tuple[str, float], Point] = {}
    for point, row in rows.items():
        if point.port_buffer == SHALLOW_PORT and point.nodes == paper.NODES:
            place = (point.model, point.gbit)
            best = settings.setdefault(place, {})
            points.setdefault(place, point)
            if row.throughput > (best[row.system].throughput if row.system in best else 0):
                best[row.system] = row
    for (model, gbit), systems in settings.items():
        found += _claims(points[model, gbit], model, gbit, systems)
    return found


def _claims(point: Point, model: str, gbit: float, systems: Mapping[str, Row]) -> Iterator[Claim]:
    where = f"{paper.TITLES[model]} at {gbit:g} Gbit/s"
    for name in ("p3", "p3-groups"):
        p3 = systems.get(name)
        if p3 is None:
            continue
        share = point.communication_share
        apart = share > APART or share < 1 / APART
        yield Claim(f"{where}: {name} of the bound", 0.95 if apart else 0.90, p3.of_bound)
        if "baseline" in systems and gbit == paper.BEST_RATE[model]:
            gain = p3.throughput / systems["baseline"].throughput
            yield Claim(f"{where}: {name} over baseline", paper.BEST_GAIN[model], gain)
        for name_of_other in ("ddp", "slicing"):
            if (other := systems.get(name_of_other)) is not None:
                wanted = 1.20 if name_of_other == "ddp" and not apart else 0.97
                ratio = p3.throughput / other.throughput
                yield Claim(f"{where}: {name} over {other.title}", wanted, ratio)


def band_claims(rows: Mapping[Point, Row]) -> list[Claim]:
    """P3's bands are as good as the best of the others that were tried."""
    tried: dict[tuple[str, float, str], dict[str, float]] = {}
    for point, row in rows.items():
        place = (point.model, point.gbit, point.system)
        tried.setdefault(place, {})[point.cutting] = row.throughput
    return [
        Claim(
            f"{paper.TITLES[model]} at {gbit:g} Gbit/s: {system}'s bands over the best others",
            ALIKE,
            ways[USUAL_CUTTING] / max(rest),
        )
        for (model, gbit, system), ways in tried.items()
        if USUAL_CUTTING in ways
        and (rest := [speed for way, speed in ways.items() if way != USUAL_CUTTING])
    ]
