"""Every rank issues a band's slices in one order, whatever order gradients appear in."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from p3.band_queue import BandQueue


@given(st.integers(1, 8), st.integers(1, 4), st.data())
def test_slices_are_issued_in_their_fixed_order(
    slices: int, iterations: int, data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(slices)))
    queue = BandQueue(order)
    issued: list[int] = []
    for iteration in range(iterations):
        for index in data.draw(st.permutations(range(slices))):
            issued += queue.add(index, iteration)
    assert issued == [*order] * iterations


def test_an_early_slice_waits_and_leaves_with_the_one_before_it() -> None:
    queue = BandQueue([2, 1, 0])
    assert queue.add(1, 0) == []
    assert queue.add(2, 0) == [2, 1]
    assert queue.add(2, 1) == []
    assert queue.add(0, 0) == [0, 2]
