"""The paper's figures as curves to draw beside ours, and where it is compared. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from experiments.paper import FIGURE_7, FIGURE_10, FIGURE_12, FIGURE_12_NUMELS, FIGURES_8_9

Curve = Mapping[float, float]
"""x → y."""

SYSTEMS = ("baseline", "slicing", "p3")
TITLES = {
    "resnet50_v1": "ResNet-50",
    "vgg19": "VGG-19",
    "inception_v3": "InceptionV3",
    "sockeye": "Sockeye",
}
NODES = 4
RATE_10 = 10.0
"""Gbit/s of figure 10's links."""

MODELS = tuple(FIGURE_7)

BEST_RATE = {"resnet50_v1": 4.0, "inception_v3": 3.0, "vgg19": 15.0, "sockeye": 4.0}
"""Gbit/s at which the issue compares; InceptionV3's is where figure 7 shows the largest gain of
those below its plateau."""
BEST_GAIN = {"resnet50_v1": 1.26, "inception_v3": 1.18, "vgg19": 1.65, "sockeye": 1.32}
"""P3 over the baseline there."""

MODELS_10 = tuple(FIGURE_10)
MODELS_12 = tuple(FIGURE_12)
RATES_12 = {"resnet50_v1": 4.0, "vgg19": 15.0, "sockeye": 10.0}
"""Not in the paper's text: where figure 7 has the throughput that figure 12 has at 50,000."""


@dataclass(frozen=True, slots=True)
class Use:
    """A machine's outbound link: mean Gbit/s, and the share of time in which it was idle."""

    mean_gbit: float
    idle: float


MODELS_8 = tuple(FIGURES_8_9)
IDLE_BELOW = 0.05


def figure_7(model: str) -> dict[str, Curve]:
    """Samples a second on one machine by Gbit/s, for each of `SYSTEMS`."""
    rows = FIGURE_7[model]
    return {
        "baseline": {row.gbit: row.baseline for row in rows},
        "slicing": {row.gbit: row.slicing for row in rows},
        "p3": {row.gbit: row.p3 for row in rows},
    }


def rates(model: str) -> tuple[float, ...]:
    """The rates that figure 7 has of `model`, in Gbit/s."""
    return tuple(row.gbit for row in FIGURE_7[model])


def figure_8(model: str) -> tuple[float, dict[str, Use]]:
    """The link's rate in Gbit/s, and both systems' use of it. Idle: below 5 % of the rate."""
    row = FIGURES_8_9[model]
    return row.gbit, {
        "baseline": Use(row.baseline, row.baseline_idle),
        "p3": Use(row.p3, row.p3_idle),
    }


def figure_10(model: str) -> dict[str, Curve]:
    """Samples a second on one machine by the number of machines."""
    rows = FIGURE_10[model]
    return {
        "baseline": {row.machines: row.baseline / row.machines for row in rows},
        "p3": {row.machines: row.p3 / row.machines for row in rows},
    }


def figure_12(model: str) -> dict[str, Curve]:
    """P3's samples a second on one machine by slice size."""
    return {"p3": dict(zip(FIGURE_12_NUMELS, FIGURE_12[model], strict=True))}


def units(model: str) -> str:
    """What is counted: images or sentences."""
    return "sentences" if model == "sockeye" else "images"
