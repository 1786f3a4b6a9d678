"""Sooner needed is never less urgent, and an iteration's debts come before the next one's."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p3.schedule import Schedule, make_schedule

sizes = st.lists(st.integers(1, 1000), min_size=1, max_size=40)


@given(sizes, st.integers(1, 16))
def test_bands_follow_forward_order_and_all_are_in_use(layers: list[int], bands: int) -> None:
    schedule = make_schedule(layers, bands)
    found = [schedule.push_band(layer) for layer in range(len(layers))]
    assert all(one <= other for one, other in pairwise(found))
    assert set(found) == set(range(min(bands, len(layers))))


def delay(layers: list[int], cuts: tuple[int, ...]) -> int:
    """Bytes times earlier layers that stand behind them in their band."""
    schedule = Schedule(len(layers), cuts)
    band = [schedule.push_band(layer) for layer in range(len(layers))]
    return sum(
        size
        for layer, size in enumerate(layers)
        for earlier in range(layer)
        if band[earlier] == band[layer]
    )


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=8), st.integers(1, 4))
def test_no_other_cuts_delay_less(layers: list[int], bands: int) -> None:
    found = delay(layers, make_schedule(layers, bands).cuts)
    count = min(bands, len(layers)) - 1
    assert found == min(delay(layers, cuts) for cuts in combinations(range(1, len(layers)), count))


@given(sizes, st.integers(1, 7), st.integers(0, 5), st.data())
def test_sooner_due_is_never_in_a_later_band(
    layers: list[int], bands: int, iteration: int, data: st.DataObject
) -> None:
    schedule = make_schedule(layers, bands)
    count = len(layers)
    # From the first gradient on until the next iteration has handed over its last one.
    begins = schedule.backward_position(iteration, count - 1)
    now = data.draw(st.integers(begins, schedule.backward_position(iteration + 1, 0)))
    there = [iteration]
    if now >= schedule.backward_position(iteration + 1, count - 1):
        there.append(iteration + 1)
    order = [schedule.band(schedule.due(k, layer), now) for k in there for layer in range(count)]
    assert all(one <= other for one, other in pairwise(order))


@given(sizes, st.integers(1, 7), st.integers(0, 5))
def test_a_gradient_gets_its_push_band_when_it_appears(
    layers: list[int], bands: int, iteration: int
) -> None:
    schedule = make_schedule(layers, bands)
    for layer in range(len(layers)):
        now = schedule.backward_position(iteration, layer)
        assert schedule.band(schedule.due(iteration, layer), now) == schedule.push_band(layer)


@given(sizes, st.integers(1, 7))
def test_what_the_last_iteration_still_owes_is_most_urgent_in_backward(
    layers: list[int], bands: int
) -> None:
    schedule = make_schedule(layers, bands)
    backward_began = schedule.backward_position(1, len(layers) - 1)
    for layer in range(len(layers)):
        due = schedule.due(0, layer)
        assert schedule.band(due, backward_began) == 0
        # Until it is due it stays where the rest of its layer is.
        assert schedule.band(due, due) == 0
        assert schedule.band(due, due - 1) == schedule.push_band(layer)


def test_no_bands_are_refused_and_no_layers_are_not() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        make_schedule([1], 0)
    assert make_schedule([], 3) == Schedule(0, ())
