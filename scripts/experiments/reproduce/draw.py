"""The figures as pictures: ours solid, every repeat a dot; the paper's curve dashed beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from textwrap import fill

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.reproduce import paper
from experiments.reproduce.points import Measurement, Point
from experiments.reproduce.summary import Row

_COLOURS = {
    "baseline": "#c03030",
    "slicing": "#e0a030",
    "p3": "#2a6fbb",
    "p3-static": "#7fb0e0",
    "p3-no-agents": "#5a8fd0",
    "p3-groups": "#3a9a5a",
    "p3-groups-no-agents": "#90c8a0",
    "ddp": "#8c8c8c",
    "asgd": "#a04a8a",
}
_PANEL = (6.0, 4.2)
DOTS_PER_INCH = 110

Rows = Mapping[Point, Row]
PaperCurves = Callable[[str], Mapping[str, paper.Curve]]


def _panels(models: Sequence[str], title: str) -> tuple[Figure, dict[str, Axes]]:
    columns = min(2, len(models))
    lines = -(-len(models) // columns)
    width, height = _PANEL
    figure = Figure(figsize=(width * columns, height * lines), layout="constrained")
    figure.suptitle(fill(title, 45 * columns))
    axes = figure.subplots(lines, columns, squeeze=False).flat
    found = dict(zip(models, axes, strict=False))
    for model, one in found.items():
        one.set_title(paper.TITLES[model])
    for unused in list(axes)[len(models) :]:
        unused.set_axis_off()
    return figure, found


def models_of(rows: Iterable[Point]) -> list[str]:
    """Models in the paper's order."""
    there = {point.model for point in rows}
    return [model for model in paper.MODELS if model in there]


def against(
    rows: Rows,
    x: Callable[[Point], float],
    curves: PaperCurves,
    labels: tuple[str, str],
    title: str,
) -> Figure:
    """Throughput against `x`, a panel a model and a line a system."""
    figure, axes = _panels(models_of(rows), title)
    for model, one in axes.items():
        mine = {point: row for point, row in rows.items() if point.model == model}
        for system, curve in curves(model).items():
            name = f"paper: {system}"
            one.plot(list(curve), list(curve.values()), "--", color=_COLOURS[system], label=name)
        for name in dict.fromkeys(row.title for row in mine.values()):
            _line(one, {p: r for p, r in mine.items() if r.title == name}, x, name)
        one.set_xlabel(labels[0])
        one.set_ylabel(labels[1].format(units=paper.units(model)))
        one.set_ylim(bottom=0)
        one.grid(alpha=0.2)
        one.legend(fontsize="x-small")
    return figure


def _line(axes: Axes, rows: Rows, x: Callable[[Point], float], name: str) -> None:
    ordered = sorted(rows.items(), key=lambda pair: x(pair[0]))
    colour = _COLOURS[ordered[0][0].system]
    places = [x(point) for point, _ in ordered]
    style = "-" if ordered[0][0].bucket_mib in (0, 25) else ":"
    medians = [row.throughput for _, row in ordered]
    axes.plot(places, medians, marker="o", markersize=4, color=colour, label=name, linestyle=style)
    for place, (_, row) in zip(places, ordered, strict=True):
        count = len(row.repeats)
        axes.plot([place] * count, row.repeats, ".", color=colour, alpha=0.4, markersize=3)


def by_title(rows: Rows, title: str) -> Figure:
    """Throughput by system and way to cut bands, a panel a model."""
    figure, axes = _panels(models_of(rows), title)
    for model, one in axes.items():
        mine = {point: row for point, row in rows.items() if point.model == model}
        for place, (point, row) in enumerate(mine.items()):
            colour = _COLOURS[point.system]
            one.plot(row.repeats, [place] * len(row.repeats), ".", color=colour, alpha=0.4)
            one.plot([row.throughput], [place], "o", color=colour)
        names = [f"{point.system}, {point.cutting}, {point.gbit:g} Gbit/s" for point in mine]
        one.set_yticks(range(len(mine)), names, fontsize="x-small")
        one.set_xlabel(f"{paper.units(model)} a second and machine")
        one.grid(alpha=0.2)
    return figure


def utilisation(measurements: Sequence[Measurement], title: str) -> Figure:
    """Node 0's outbound rate in time: a line a model, a column a system."""
    models = models_of(one.point for one in measurements)
    systems = list(paper.SYSTEMS[::2])
    width, height = _PANEL
    figure = Figure(figsize=(2 * width, 0.6 * height * len(models)), layout="constrained")
    figure.suptitle(fill(title, 90))
    axes = figure.subplots(len(models), 2, squeeze=False)
    last = {(one.point.model, one.point.system): one for one in measurements}
    for line, model in enumerate(models):
        for column, system in enumerate(systems):
            one = last.get((model, system))
            if one is not None:
                _in_time(axes[line][column], one)
    return figure


def _in_time(axes: Axes, one: Measurement) -> None:
    use, point = one.use, one.point
    times = [number * use.bin_s / point.slow for number in range(len(use.bins))]
    axes.plot(times, use.bins, color=_COLOURS[point.system], linewidth=0.7)
    theirs = paper.figure_8(point.model)[1][point.system]
    axes.axhline(use.mean_gbit, color="black", linewidth=0.8)
    axes.axhline(theirs.mean_gbit, color="black", linewidth=0.8, linestyle="--")
    axes.set_title(
        f"{paper.TITLES[point.model]} at {point.gbit:g} Gbit/s, {point.system}: mean "
        f"{use.mean_gbit:.2f}, idle {use.idle:.0%} (paper, dashed: {theirs.mean_gbit:.2f}, "
        f"{theirs.idle:.0%})",
        fontsize="small",
    )
    axes.set_ylim(0, 1.15 * point.gbit)
    axes.set_ylabel("Gbit/s")
    axes.set_xlabel("seconds")
