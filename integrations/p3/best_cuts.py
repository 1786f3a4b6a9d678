"""Bands that a simulated iteration likes best. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from p3.cuts import CUTTINGS, Given
from p3.profile import Profile
from p3.simulate import BANDS, Prediction, predict
from p3.simulation.network import Network
from p3.simulation.pieces import schedule_of
from p3.systems import System


def with_best_cuts(profile: Profile, network: Network, system: System) -> Prediction:
    """`system` with bands at least as good as those of every known way to cut.

    From the best of these on, one cut at a time is moved, by ever fewer layers, while that helps.
    """
    tried: dict[tuple[int, ...], Prediction] = {}

    def told(cuts: tuple[int, ...]) -> Prediction:
        if cuts not in tried:
            tried[cuts] = predict(profile, network, replace(system, cutting=Given(cuts)))
        return tried[cuts]

    layers = len(profile.layers)
    ways = (replace(system, cutting=cutting) for cutting in CUTTINGS.values())
    starts = [schedule_of(profile, way, BANDS).cuts for way in ways]
    best = min(map(told, starts), key=lambda one: one.iteration_s)
    cuts = starts[[told(start) for start in starts].index(best)]
    step = max(1, layers // 8)
    while step:
        nearest = min(_moved(cuts, step, layers), key=lambda one: told(one).iteration_s)
        if told(nearest).iteration_s < told(cuts).iteration_s:
            cuts = nearest
        else:
            step //= 2
    return told(cuts)


def _moved(cuts: tuple[int, ...], step: int, layers: int) -> Iterator[tuple[int, ...]]:
    """`cuts`, and all that have one of them moved by `step` layers."""
    yield cuts
    for place in range(len(cuts)):
        for way in (-step, step):
            moved = (*cuts[:place], cuts[place] + way, *cuts[place + 1 :])
            if all(low < high for low, high in zip((0, *moved), (*moved, layers), strict=True)):
                yield moved
