"""Repeats as one number: medians, spreads, and what P3 gains. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import msgspec

from experiments.reproduce.plans import DEFAULT_BUCKET_MIB
from experiments.reproduce.points import Measurement, Point
from experiments.rounds import spread


class Row(msgspec.Struct, frozen=True):
    """One point: `throughput` is samples a second and machine, the median of `repeats`.

    `spread` is largest minus smallest over the median, `of_bound` the share of what no synchronous
    system beats; `mean_gbit` and `idle` are of node 0's link, medians; `emulated` says how the
    point was made small.
    """

    model: str
    system: str
    title: str
    nodes: int
    gbit: float
    slice_numel: int
    bucket_mib: float
    port_buffer: int
    throughput: float
    repeats: list[float]
    spread: float
    of_bound: float
    mean_gbit: float
    idle: float
    cpu_s: float
    emulated: str


def emulated(point: Point) -> str:
    """How a point was made small, in words."""
    parts = [f"sizes / {point.scale}", f"links {point.rate}"]
    if point.slow != 1:
        parts.append(f"{point.slow:g} times slower")
    if point.slice_numel:
        parts.append(f"slices of {point.emulated_slice_numel}")
    return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Summary:
    """Every measured point's row."""

    rows: Mapping[Point, Row]

    def of(self, points: Iterable[Point]) -> dict[Point, Row]:
        """Those of `points` that are measured."""
        return {point: self.rows[point] for point in points if point in self.rows}


def summarize(measurements: Sequence[Measurement]) -> Summary:
    """Repeats put together, in the order of their points' first ones."""
    by_point: dict[Point, list[Measurement]] = {}
    for one in measurements:
        by_point.setdefault(one.point, []).append(one)
    return Summary({point: _row(point, repeats) for point, repeats in by_point.items()})


def _row(point: Point, repeats: Sequence[Measurement]) -> Row:
    found = [one.throughput for one in repeats]
    return Row(
        model=point.model,
        system=point.system,
        title=point.title,
        nodes=point.nodes,
        gbit=point.gbit,
        slice_numel=point.slice_numel,
        bucket_mib=point.bucket_mib,
        port_buffer=point.port_buffer,
        throughput=median(found),
        repeats=found,
        spread=spread(found),
        of_bound=median(found) * point.bound_s / point.throughput(1.0),
        mean_gbit=median(one.use.mean_gbit for one in repeats),
        idle=median(one.use.idle for one in repeats),
        cpu_s=median(one.cpu_s for one in repeats),
        emulated=emulated(point),
    )


def best_buckets(rows: Mapping[Point, Row]) -> dict[Point, Row]:
    """Without DDP's rows but for the default buckets and the best ones of each setting."""
    best: dict[tuple[object, ...], Point] = {}
    for point, row in rows.items():
        if point.bucket_mib:
            place = _setting(point)
            if place not in best or rows[best[place]].throughput < row.throughput:
                best[place] = point
    kept = set(best.values())
    return {
        point: row
        for point, row in rows.items()
        if point.bucket_mib in (0, DEFAULT_BUCKET_MIB) or point in kept
    }


def _setting(point: Point) -> tuple[object, ...]:
    return (point.model, point.nodes, point.gbit, point.port_buffer, point.samples_per_s)
