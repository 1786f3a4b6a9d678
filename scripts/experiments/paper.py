"""What the P3 paper measured (arXiv 1905.03960 v1), read off its plots. Values alone.

Models are named as in `experiments.emulation.paper_profiles`.
"""

from __future__ import annotations

from typing import NamedTuple


class Throughput(NamedTuple):
    """Samples a second on each of four machines, at a limit in Gbit/s."""

    gbit: float
    baseline: float
    slicing: float
    p3: float


FIGURE_7: dict[str, tuple[Throughput, ...]] = {
    "resnet50_v1": (
        Throughput(1, 22.1, 23.6, 25.2),
        Throughput(2, 43.7, 44.1, 50.3),
        Throughput(3, 61.0, 62.0, 76.3),
        Throughput(4, 76.4, 77.7, 96.6),
        Throughput(5, 90.6, 91.5, 99.1),
        Throughput(6, 98.0, 100.7, 101.9),
        Throughput(8, 99.3, 100.6, 100.7),
        Throughput(10, 99.3, 100.6, 100.7),
    ),
    "inception_v3": (
        Throughput(1, 25.0, 24.0, 26.4),
        Throughput(2, 45.1, 43.9, 52.7),
        Throughput(3, 61.2, 60.5, 69.0),
        Throughput(4, 67.4, 68.4, 69.8),
        Throughput(5, 67.6, 67.9, 69.4),
        Throughput(6, 67.4, 67.3, 70.5),
        Throughput(8, 68.2, 70.3, 70.3),
        Throughput(10, 68.2, 70.3, 70.3),
    ),
    "vgg19": (
        Throughput(3, 13.0, 13.0, 13.8),
        Throughput(4, 16.6, 16.9, 18.3),
        Throughput(5, 19.8, 20.6, 22.8),
        Throughput(6, 22.4, 24.2, 27.3),
        Throughput(8, 26.8, 30.8, 35.5),
        Throughput(10, 30.1, 36.9, 43.4),
        Throughput(12, 32.1, 42.5, 50.4),
        Throughput(15, 32.9, 48.3, 54.3),
        Throughput(20, 34.3, 49.7, 54.5),
        Throughput(30, 34.8, 52.2, 55.1),
    ),
    "sockeye": (
        Throughput(1, 15.8, 22.8, 23.5),
        Throughput(2, 33.6, 43.8, 46.3),
        Throughput(3, 51.0, 62.9, 67.8),
        Throughput(4, 67.0, 80.4, 88.2),
        Throughput(5, 82.9, 96.0, 106.6),
        Throughput(6, 95.1, 109.6, 123.6),
        Throughput(8, 112.2, 130.3, 143.7),
        Throughput(10, 122.1, 143.1, 154.9),
        Throughput(15, 134.1, 149.2, 166.9),
        Throughput(20, 136.8, 150.1, 166.2),
        Throughput(30, 139.3, 151.1, 167.9),
    ),
}


class Scaling(NamedTuple):
    """Samples a second of all machines together, at 10 Gbit/s."""

    machines: int
    baseline: float
    p3: float


FIGURE_10: dict[str, tuple[Scaling, ...]] = {
    "resnet50_v1": (
        Scaling(1, 68.9, 68.9),
        Scaling(2, 135, 136),
        Scaling(4, 269, 271),
        Scaling(8, 523, 532),
        Scaling(16, 858, 895),
    ),
    "vgg19": (
        Scaling(1, 41.7, 41.7),
        Scaling(2, 52.3, 64.5),
        Scaling(4, 99.2, 130),
        Scaling(8, 142, 229),
        Scaling(16, 204, 298),
    ),
    "sockeye": (
        Scaling(1, 166, 166),
        Scaling(2, 158, 175),
        Scaling(4, 381, 423),
        Scaling(8, 578, 683),
        Scaling(16, 876, 936),
    ),
}

FIGURE_12_NUMELS = (5_000, 10_000, 50_000, 100_000, 500_000, 1_000_000)
"""Slice sizes, in elements."""
FIGURE_12: dict[str, tuple[float, ...]] = {
    "resnet50_v1": (90.2, 95.0, 97.2, 94.9, 84.0, 77.4),
    "vgg19": (15.2, 27.8, 56.4, 56.2, 55.7, 54.9),
    "sockeye": (77.5, 118, 157.7, 156.3, 139.5, 123.2),
}
"""Samples a second on each of four machines, by slice size."""


class Utilisation(NamedTuple):
    """Outbound traffic under a limit: mean Gbit/s, and the share of time that it is idle."""

    gbit: float
    baseline: float
    baseline_idle: float
    p3: float
    p3_idle: float


FIGURES_8_9: dict[str, Utilisation] = {
    "resnet50_v1": Utilisation(4, 2.93, 0.14, 3.49, 0.04),
    "vgg19": Utilisation(15, 6.69, 0.27, 11.16, 0.03),
    "sockeye": Utilisation(4, 2.52, 0.28, 3.44, 0.04),
}
