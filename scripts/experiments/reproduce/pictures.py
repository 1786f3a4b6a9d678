"""Which pictures each figure has, and its numbers as JSON and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from experiments.reproduce import draw, paper
from experiments.reproduce.points import Measurement, Point
from experiments.reproduce.summary import Row, best_buckets

NAMES = {
    "fig7": "throughput against bandwidth",
    "fig8": "a link's use in time",
    "fig10": "machines",
    "fig12": "slice size",
    "bands": "ways to cut bands",
}
Rows = Mapping[Point, Row]


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture of one figure at one port buffer; `rows` are what it shows."""

    name: str
    title: str
    figure: Figure
    rows: Sequence[Row]


def pictures(name: str, rows: Rows, measurements: Sequence[Measurement]) -> Iterator[Picture]:
    """Figure `name`, once a port buffer that was measured."""
    shown = best_buckets(rows)
    for buffer in dict.fromkeys(point.port_buffer for point in shown):
        mine = {point: row for point, row in shown.items() if point.port_buffer == buffer}
        raw = [one for one in measurements if one.point in mine]
        size = f"{buffer / 1e6:g} MB" if buffer >= 1_000_000 else f"{buffer / 1e3:g} KB"
        scales = sorted({point.scale for point in mine})
        small = ", ".join(f"1/{scale}" for scale in scales)
        title = f"{name}, {NAMES[name]}: ports of {size}; sizes and links at {small} of the paper's"
        yield Picture(
            f"{name}-{buffer // 1000}k", title, _draw(name, mine, raw, title), list(mine.values())
        )


def _draw(name: str, rows: Rows, raw: Sequence[Measurement], title: str) -> Figure:
    machine = "{units} a second and machine"
    if name == "fig7":
        return draw.against(rows, lambda p: p.gbit, paper.figure_7, ("Gbit/s", machine), title)
    if name == "fig8":
        return draw.utilisation(raw, title)
    if name == "fig10":
        return draw.against(rows, lambda p: p.nodes, paper.figure_10, ("machines", machine), title)
    if name == "bands":
        return draw.by_title(rows, title)
    figure = draw.against(
        rows, lambda p: p.slice_numel, paper.figure_12, ("slice size", machine), title
    )
    for axes in figure.axes:
        axes.set_xscale("log")
    return figure


def as_csv(rows: Sequence[Row]) -> str:
    """A line a row, repeats in one field."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(Row.__struct_fields__)
    for row in rows:
        values = [getattr(row, field) for field in Row.__struct_fields__]
        writer.writerow(
            " ".join(f"{part:.4g}" for part in value) if isinstance(value, list) else value
            for value in values
        )
    return text.getvalue()
