"""Which engine is taken, and the one for a single rank."""

from __future__ import annotations

import pytest
import torch

from p3.engine import EngineStatistics, Job, P3Error
from p3.engines import ALONE, GROUPS, PS, EngineOptions, choose_engine
from p3.schedule import make_schedule
from p3.slicing import Parameter, make_plan
from p3.tensors import adder, bytes_of
from p3_shaper.bands import default_table


def test_auto_goes_by_the_number_of_ranks() -> None:
    assert choose_engine("auto", 1) is ALONE
    assert choose_engine("auto", 2) is GROUPS
    assert choose_engine("ps", 1) is PS
    assert choose_engine(PS, 4) is PS


def test_an_unknown_engine_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(P3Error, match="'mpi' is unknown: choose one of auto, groups, ps"):
        choose_engine("mpi", 2)


@pytest.mark.native_threads
def test_alone_a_payload_is_its_own_sum() -> None:
    plan = make_plan([Parameter("p", 10, "float32", 4, 0)], 1)
    done: list[int] = []
    errors: list[P3Error] = []
    payload = torch.arange(11.0)
    job = Job(
        name="alone",
        rank=0,
        plan=plan,
        schedule=make_schedule(plan.layer_bytes(), 1),
        table=default_table(),
        payloads=[bytes_of(payload)],
        adders={"float32": adder(payload.dtype)},
        on_done=done.append,
        on_error=errors.append,
    )
    engine = ALONE.open(job, EngineOptions())
    engine.submit(0, 0)
    engine.advance(1)
    assert done == [0]
    assert torch.equal(payload, torch.arange(11.0))
    assert engine.statistics() == EngineStatistics((), 1)
    engine.close()
    engine.submit(0, 1)
    assert done == [0]
    assert not errors
