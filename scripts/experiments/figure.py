"""The demo's picture: iteration times against the bound, and the loss curves over each other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.outcome import Outcome

_COLOURS = ("#8c8c8c", "#e0a030", "#2a6fbb", "#3a9a5a", "#a04a8a")
_DOTS_PER_INCH = 120


def draw(outcomes: Mapping[str, Outcome], bound_s: float, title: str, path: Path) -> None:
    """Write a PNG to `path`; `outcomes` by the title of their system."""
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    figure.suptitle(title)
    left, right = figure.subplots(1, 2)
    _times(left, outcomes, bound_s)
    _losses(right, outcomes)
    figure.savefig(path, dpi=_DOTS_PER_INCH)


def _times(axes: Axes, outcomes: Mapping[str, Outcome], bound_s: float) -> None:
    medians = [outcome.iteration_s for outcome in outcomes.values()]
    bars = axes.bar(list(outcomes), medians, color=_COLOURS[: len(outcomes)])
    # Low in the bar, away from the dots, which lie around its top.
    axes.bar_label(bars, fmt="%.3f s", label_type="center", color="white", fontweight="bold")
    for place, outcome in enumerate(outcomes.values()):
        times = outcome.steady_times
        axes.plot([place] * len(times), times, ".", color="black", alpha=0.25, markersize=4)
    axes.axhline(bound_s, color="#c03030", linestyle="--", label=f"bound {bound_s:.3f} s")
    axes.set_ylabel("seconds an iteration (median; dots: each)")
    axes.set_ylim(bottom=0)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1))


def _losses(axes: Axes, outcomes: Mapping[str, Outcome]) -> None:
    # Thinner and thinner, so that curves which agree all stay visible.
    for place, (name, outcome) in enumerate(outcomes.items()):
        width = 2 * (len(outcomes) - place)
        axes.plot(outcome.losses, label=name, color=_COLOURS[place], linewidth=width)
    axes.set_xlabel("iteration")
    axes.set_ylabel("training loss over all nodes")
    axes.legend()
