"""The systems that P3 is compared with: cut, order and pulls are theirs, results as alone."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.ranks import Ranks

from p3.aggregator import Sum
from p3.compared import COMPARED, engine_of
from p3.kvstore import make_kvstore_plan
from p3.pulls import PullError, Pulls
from p3.schedule import Order, make_schedule
from p3.slicing import Parameter
from p3.systems import SYSTEMS

TOLERANCE = 2e-5
SPLIT = 100
ORDERS: tuple[Order, ...] = ("fifo", "layer")


def parameters_of(numels: list[int]) -> list[Parameter]:
    return [Parameter(f"p{i}", numel, "float32", 4, i) for i, numel in enumerate(numels)]


def test_every_system_trains_as_one_process_does(ranks: Ranks) -> None:
    results = ranks.run("synchronous_systems")
    for name in COMPARED.keys() - {"asgd"}:
        systems = [result[name] for result in results]
        assert all(system["distance"] < TOLERANCE for system in systems)
        assert len({system["digest"] for system in systems}) == 1


def test_asynchronous_sgd_learns_and_waits_for_nobody(ranks: Ranks) -> None:
    for result in ranks.run("asynchronous_system"):
        assert result["last"] < result["first"] / 4


@given(st.lists(st.integers(0, 5 * SPLIT), max_size=12), st.integers(1, 5))
def test_tensors_go_whole_or_in_a_piece_a_server(numels: list[int], workers: int) -> None:
    plan = make_kvstore_plan(parameters_of(numels), workers, SPLIT)
    for numel, indices in zip(numels, plan.slices_of(), strict=True):
        pieces = [plan.slices[index] for index in indices]
        assert sum(piece.numel for piece in pieces) == numel
        assert len(pieces) == (workers if numel >= SPLIT else 1)
        assert len({piece.server for piece in pieces}) == len(pieces)
        bounds = [(piece.segments[0].start, piece.numel) for piece in pieces]
        assert all(start + size == after for (start, size), (after, _) in pairwise(bounds))


def test_a_parameter_is_asked_for_once_all_of_its_pieces_are_there() -> None:
    plan = make_kvstore_plan(parameters_of([3 * SPLIT, 7]), 3, SPLIT)
    pulls = Pulls(plan, rank=0)
    mine, *others = plan.slices_of()[0]
    assert plan.slices[mine].server == 0
    for _ in range(2):
        assert pulls.notified(others[1]) == []
        assert pulls.notified(mine) == []
        assert pulls.notified(others[0]) == others


def test_what_is_offered_is_given_once() -> None:
    pulls = Pulls(make_kvstore_plan(parameters_of([9]), 2), rank=0)
    total = Sum(0, 4, bytearray(), bytearray(), 2)  # type: ignore[arg-type]
    pulls.offer(1, total)
    with pytest.raises(PullError, match="rank 1 asks for slice 0 of iteration 5"):
        pulls.take(1, 0, 5)
    assert pulls.offered
    assert pulls.take(1, 0, 4) is total
    with pytest.raises(PullError, match="not offered"):
        pulls.take(1, 0, 4)
    pulls.offer(1, total)
    assert pulls.drop(1) == [total]
    assert not pulls.offered


def test_orders() -> None:
    layers, bands = [5, 60, 7, 40], 3
    by = {order: make_schedule(layers, bands, order=order) for order in ORDERS}
    assert by["fifo"].bands == 1
    assert by["layer"].cuts == make_schedule(layers, bands).cuts
    for layer in range(len(layers)):
        assert by["fifo"].due(3, layer) == 0
        due = by["layer"].due(3, layer)
        assert due == by["layer"].due(9, layer) == layer
        late = by["layer"].backward_position(9, 0)
        assert by["layer"].band(due, late) == by["layer"].push_band(layer)


def test_buckets_are_not_p3s() -> None:
    with pytest.raises(ValueError, match="use DistributedDataParallel"):
        engine_of(SYSTEMS["ddp"])
