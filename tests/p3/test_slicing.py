"""Slices cover every element once, in forward order, evenly over servers."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p3.slicing import FIRST_NUMEL, PACK_SHARE, TAIL_SHARE, Parameter, SlicePlan, make_plan

DTYPES = {"float32": 4, "bfloat16": 2}


@st.composite
def models(draw: st.DrawFn) -> tuple[Parameter, ...]:
    count = draw(st.integers(1, 30))
    layers = draw(st.permutations(range(count)))
    numels = draw(st.lists(st.integers(0, 400), min_size=count, max_size=count))
    dtypes = draw(st.lists(st.sampled_from(sorted(DTYPES)), min_size=count, max_size=count))
    return tuple(
        Parameter(f"p{i}", numels[i], dtypes[i], DTYPES[dtypes[i]], layers[i] // 2)
        for i in range(count)
    )


servers = st.lists(st.integers(0, 7), unique=True, max_size=4)
plans = st.builds(make_plan, models(), st.integers(1, 5), st.integers(1, 150), servers)


@given(plans)
def test_every_element_is_in_one_slice_and_every_flag_travels_once(plan: SlicePlan) -> None:
    covered: list[list[int]] = [[] for _ in plan.parameters]
    ends = [0] * len(plan.parameters)
    for piece in plan.slices:
        for part in piece.segments:
            covered[part.parameter] += range(part.start, part.start + part.numel)
            ends[part.parameter] += part.ends
    for number, parameter in enumerate(plan.parameters):
        assert covered[number] == list(range(parameter.numel))
        assert ends[number] == 1


@given(models(), st.integers(1, 150))
def test_slices_are_small_in_forward_order_and_of_one_dtype(
    parameters: tuple[Parameter, ...], slice_numel: int
) -> None:
    plan = make_plan(parameters, 2, slice_numel)
    assert all(one.layer <= other.layer for one, other in pairwise(plan.slices))
    for index, piece in enumerate(plan.slices):
        assert piece.index == index
        assert piece.numel <= slice_numel
        assert piece.payload_numel
        members = [plan.parameters[part.parameter] for part in piece.segments]
        assert {member.dtype for member in members} == {piece.dtype}
        assert piece.layer == min(member.layer for member in members)
        followers = piece.numel - piece.segments[0].numel
        if followers > piece.segments[0].numel // TAIL_SHARE:
            before = sum(earlier.numel for earlier in plan.slices[:index])
            assert piece.numel <= slice_numel // PACK_SHARE
            assert piece.numel <= max(before, FIRST_NUMEL)
        assert all(part.start == 0 and part.ends for part in piece.segments[1:])


def test_a_bias_travels_with_its_weight_and_the_first_layers_do_not_wait_for_each_other() -> None:
    sizes = (900, 30, 4_000, 40, 8_000, 50, 30_000, 60, 250_000, 70, 500)
    parameters = [Parameter(f"p{i}", n, "float32", 4, i // 2) for i, n in enumerate(sizes)]
    plan = make_plan(parameters, 4, 100_000)
    held = [[part.parameter for part in piece.segments] for piece in plan.slices]
    assert held == [[0, 1], [2, 3], [4, 5], [6, 7], [8], [8], [8, 9, 10]]


@given(plans)
def test_servers_differ_by_one_slice_at_most(plan: SlicePlan) -> None:
    load = dict.fromkeys(plan.servers, 0)
    for piece in plan.slices:
        load[piece.server] += piece.payload_bytes
    largest = max((piece.payload_bytes for piece in plan.slices), default=0)
    assert max(load.values()) - min(load.values()) <= largest


def test_payloads_go_between_workers_and_servers_alone() -> None:
    plan = make_plan([], 3, servers=(1, 3, 4))
    assert plan.members == 5
    ways = {(one, to) for one in range(5) for to in range(5) if one != to and plan.sends(one, to)}
    pushes = {(worker, server) for worker in range(3) for server in (1, 3, 4)}
    assert ways == {way for way in pushes | {(b, a) for a, b in pushes} if way[0] != way[1]}
    everyone = make_plan([], 3)
    assert everyone.members == 3
    assert all(everyone.sends(one, to) for one in range(3) for to in range(3))


def test_servers_are_even_over_the_model_not_per_tensor() -> None:
    # Three slices a tensor: dealing each tensor from server 0 on would leave server 3 empty.
    plan = make_plan([Parameter(f"p{i}", 300, "float32", 4, i) for i in range(8)], 4, 100)
    used = [piece.server for piece in plan.slices]
    assert [used.count(server) for server in range(4)] == [6, 6, 6, 6]


@given(models())
def test_digests_agree_exactly_when_plans_do(parameters: tuple[Parameter, ...]) -> None:
    plan = make_plan(parameters, 3, 60)
    assert plan.digest() == make_plan(parameters, 3, 60).digest()
    assert plan.digest() != make_plan(parameters, 4, 60).digest()
    assert plan.digest() != make_plan(parameters, 3, 60, servers=(0, 1)).digest()
    assert plan.digest() != make_plan((*parameters, parameters[0]), 3, 60).digest()


@pytest.mark.parametrize(("world_size", "slice_numel"), [(0, 1), (1, 0)])
def test_sizes_below_one_are_refused(world_size: int, slice_numel: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        make_plan([], world_size, slice_numel)
