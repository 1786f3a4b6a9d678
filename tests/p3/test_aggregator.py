from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from p3.aggregator import Aggregator, ContributionError, Sum
from p3.slicing import Parameter, SlicePlan, make_plan
from p3.tensors import adder, bytes_of, dtype_name, tensor_of

pytestmark = pytest.mark.native_threads

NUMEL = 40_000
"""Over one of the parts in which the aggregator adds."""


def plan_of(world_size: int, dtype: str = "float32", itemsize: int = 4) -> SlicePlan:
    parameters = [Parameter(f"p{i}", NUMEL + i, dtype, itemsize, i) for i in range(world_size)]
    return make_plan(parameters, world_size)


def aggregator_of(plan: SlicePlan, rank: int, payloads: Sequence[torch.Tensor]) -> Aggregator:
    adders = {dtype_name(payload.dtype): adder(payload.dtype) for payload in payloads}
    return Aggregator(plan, rank, [bytes_of(payload) for payload in payloads], adders)


def gradients(plan: SlicePlan, dtype: torch.dtype, seed: int = 0) -> list[torch.Tensor]:
    """One contribution a rank to slice 0; the order of adding them shows in the last bits."""
    generator = torch.Generator().manual_seed(seed)
    numel = plan.slices[0].payload_numel
    scale = torch.logspace(-3, 3, plan.world_size)
    return [(torch.randn(numel, generator=generator) * s).to(dtype) for s in scale]


def add_in(
    order: Sequence[int], plan: SlicePlan, given: Sequence[torch.Tensor], rank: int = 0
) -> tuple[Aggregator, torch.Tensor, Sum]:
    """All contributions to slice 0 at its server, in `order`."""
    index = next(piece.index for piece in plan.slices if piece.server == rank)
    payloads = [torch.empty(piece.payload_numel, dtype=given[0].dtype) for piece in plan.slices]
    numel = payloads[index].numel()
    aggregator = aggregator_of(plan, rank, payloads)
    total: Sum | None = None
    for other in order:
        assert total is None
        part = torch.resize_as_(torch.empty(0, dtype=given[0].dtype), payloads[index])
        part[: given[other].numel()] = given[other][:numel]
        if other == rank:
            payloads[index].copy_(part)
            total = aggregator.add_own(index, 0)
        else:
            aggregator.reserve(index, 0, other)[:] = part.view(torch.uint8).numpy().data
            total = aggregator.arrived(index, other)
    assert total is not None
    aggregator.keep(total)
    return aggregator, payloads[index], total


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("rank", [0, 2])
def test_any_order_of_arrival_gives_the_same_bits(dtype: torch.dtype, rank: int) -> None:
    plan = plan_of(4, dtype_name(dtype), dtype.itemsize)
    parts = gradients(plan, dtype)
    want = parts[0].clone()
    for part in parts[1:]:
        want += part
    for order in itertools.permutations(range(4)):
        _, payload, total = add_in(order, plan, parts, rank)
        numel = want.numel()
        assert torch.equal(payload[:numel].view(torch.uint8), want.view(torch.uint8))
        assert bytes(total.payload) == bytes(payload.view(torch.uint8).numpy().data)
        assert total.readers == 3


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 7).flatmap(lambda size: st.permutations(range(size))), st.integers(0, 9))
def test_any_order_of_any_size(order: list[int], seed: int) -> None:
    plan = plan_of(len(order))
    parts = gradients(plan, torch.float32, seed)
    straight = add_in(range(len(order)), plan, parts)[1]
    assert torch.equal(add_in(order, plan, parts)[1], straight)


def test_a_sum_stays_until_its_readers_have_let_go() -> None:
    plan = plan_of(3)
    aggregator, payload, total = add_in([2, 1, 0], plan, gradients(plan, torch.float32))
    before = bytes(total.payload)
    payload.fill_(1)
    for rank in (1, 2):
        aggregator.reserve(0, 1, rank)[:] = payload.view(torch.uint8).numpy().data
        assert aggregator.arrived(0, rank) is None
    assert bytes(total.payload) == before
    aggregator.release(total)
    aggregator.release(total)
    following = aggregator.add_own(0, 1)
    assert following is not None
    aggregator.keep(following)
    assert torch.equal(payload, torch.full_like(payload, 3))


def test_alone_the_sum_is_the_contribution() -> None:
    plan = plan_of(1)
    payloads = [torch.arange(float(piece.payload_numel)) for piece in plan.slices]
    aggregator = aggregator_of(plan, 0, payloads)
    for iteration in range(3):
        total = aggregator.add_own(0, iteration)
        assert total is not None
        aggregator.keep(total)
        assert total.readers == 0
    assert torch.equal(payloads[0], torch.arange(float(payloads[0].numel())))


@pytest.mark.parametrize("server", [0, 3])
def test_a_server_that_does_not_work_adds_what_the_workers_send(server: int) -> None:
    plan = make_plan([Parameter("p", NUMEL, "float32", 4, 0)], 3, servers=[server])
    payload = torch.empty(NUMEL + 1)
    payloads = [bytes_of(payload)] if server < 3 else []
    aggregator = Aggregator(plan, server, payloads, {"float32": adder(payload.dtype)})
    parts = [torch.full((NUMEL + 1,), 10.0**worker) for worker in range(3)]
    total: Sum | None = None
    for worker in (2, 1, 0):
        if worker == server:
            payload.copy_(parts[worker])
            total = aggregator.add_own(0, 0)
        else:
            aggregator.reserve(0, 0, worker)[:] = parts[worker].view(torch.uint8).numpy().data
            total = aggregator.arrived(0, worker)
    assert total is not None
    assert torch.equal(tensor_of(total.payload, "float32"), torch.full((NUMEL + 1,), 111.0))
    assert total.readers == 3
    with pytest.raises(ContributionError, match="rank 3 contributes to slice 0 and is no worker"):
        aggregator.reserve(0, 1, 3)


def test_contributions_that_cannot_be_right_are_refused() -> None:
    plan = plan_of(3)
    payloads = [torch.zeros(piece.payload_numel) for piece in plan.slices]
    aggregator = aggregator_of(plan, 0, payloads)
    with pytest.raises(ContributionError, match="rank 0 does not serve slice 1"):
        aggregator.reserve(1, 0, 1)
    aggregator.reserve(0, 5, 1)
    with pytest.raises(ContributionError, match="rank 1 contributes to slice 0 twice"):
        aggregator.reserve(0, 5, 1)
    with pytest.raises(ContributionError, match="in iteration 6, which is in 5"):
        aggregator.reserve(0, 6, 2)
    aggregator.arrived(0, 1)
    with pytest.raises(ContributionError, match="twice in iteration 5"):
        aggregator.reserve(0, 5, 1)
    assert aggregator.waits_for(1) is None
    assert aggregator.waits_for(2) == 0
    aggregator.reserve(0, 5, 2)
    aggregator.arrived(0, 2)
    assert aggregator.add_own(0, 5) is not None
    with pytest.raises(ContributionError, match="in iteration 5, which is in 6"):
        aggregator.reserve(0, 5, 1)
    assert aggregator.waits_for(2) is None
