"""Ways to cut layers into bands; the model likes none better than the one it looked for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p3.best_cuts import with_best_cuts
from p3.cuts import CUTTINGS, Given
from p3.profile import LayerProfile, Profile
from p3.schedule import make_schedule
from p3.simulate import predict
from p3.simulation.network import Network
from p3.systems import SYSTEMS


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=40), st.integers(1, 9))
def test_every_way_makes_runs_of_layers(layers: list[int], bands: int) -> None:
    for cutting in CUTTINGS.values():
        cuts = make_schedule(layers, bands, cutting=cutting).cuts
        assert len(cuts) < bands
        assert list(cuts) == sorted(set(cuts) & set(range(1, len(layers))))


def test_what_their_names_say() -> None:
    def cuts(name: str, layers: list[int], bands: int) -> tuple[int, ...]:
        return make_schedule(layers, bands, cutting=CUTTINGS[name]).cuts

    assert cuts("one-band", [1] * 6, 3) == ()
    assert cuts("equal-count", [100, 1, 1, 1, 1, 1], 3) == (2, 4)
    assert cuts("equal-bytes", [100, 50, 50, 25, 25, 50], 3) == (1, 3)
    assert cuts("geometric", [1] * 127, 7) == (1, 3, 7, 15, 31, 63)
    assert make_schedule([1] * 6, 3, cutting=Given((1, 5))).cuts == (1, 5)


@pytest.mark.parametrize("cuts", [(1, 2, 3), (6,), (0,), (3, 2)])
def test_given_cuts_must_fit(cuts: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="3 bands at most"):
        make_schedule([1] * 6, 3, cutting=Given(cuts))


def test_the_best_are_at_least_as_good_as_all_others() -> None:
    numels = (200_000, 50_000, 900_000, 100_000, 400_000, 1_500_000, 30_000, 800_000)
    layers = (LayerProfile(str(at), (numel,), 0.01, 0.02) for at, numel in enumerate(numels))
    profile = Profile("small", "made up", 1, 4, tuple(layers))
    network = Network(4, 1e9)
    groups = SYSTEMS["p3-groups"]
    best = with_best_cuts(profile, network, groups)
    for cutting in CUTTINGS.values():
        other = predict(profile, network, replace(groups, cutting=cutting))
        assert best.iteration_s <= other.iteration_s
