"""`update="server"`: each server applies the optimizer to its slices and holds their state."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from support.ranks import Ranks
from support.server_update import OPTIMIZERS
from torch import optim

from p3.elementwise import ELEMENT_WISE, check_update, why_not_element_wise
from p3.engine import P3Error
from p3.engines import ENGINES, GROUPS, PS, choose_engine

TOLERANCE = 2e-5
APART = [2, 3]
BESIDE = [0, 1]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_servers_that_work_update_as_one_process_does(served: Ranks, name: str) -> None:
    check_same(served, name, BESIDE)


@pytest.mark.parametrize("name", ["adamw", "momentum"])
@pytest.mark.parametrize("servers", [APART, [1, 2]])
def test_other_servers_update_as_one_process_does(
    served: Ranks, name: str, servers: Sequence[int]
) -> None:
    check_same(served, name, servers)


def check_same(served: Ranks, name: str, servers: Sequence[int]) -> None:
    first, second = (served.run("servers_update", name, servers, asks) for asks in range(2))
    for result in first:
        assert result["distance"] < TOLERANCE
        assert result["state"] < TOLERANCE
        assert result["groups"]
        assert result["kept"] == 0
        assert result["seen"] == first[0]["seen"]
    assert len({result["digest"] for result in (*first, *second)}) == 1


@pytest.mark.parametrize("servers", [BESIDE, APART])
def test_a_checkpoint_resumes_bit_for_bit(served: Ranks, servers: Sequence[int]) -> None:
    for result in served.run("servers_resume", servers):
        assert result["resumed"] == [result["whole"]] * 2


@pytest.mark.parametrize("servers", [BESIDE, APART])
def test_dropped_gradients_and_loaded_parameters(served: Ranks, servers: Sequence[int]) -> None:
    for result in served.run("dropped_at_servers", servers):
        assert result["unchanged"]
        assert result["distance"] < TOLERANCE


def test_ranks_that_step_with_different_settings_all_say_so(served: Ranks) -> None:
    for result in served.run("different_rates", BESIDE):
        assert result["kind"] == "PlanMismatchError"
        assert "different settings (group 1: lr 0." in result["error"]


def test_only_what_works_by_element_is_taken() -> None:
    parameter = torch.nn.Parameter(torch.zeros(3, 3))
    for kind in ELEMENT_WISE:
        assert why_not_element_wise(kind([parameter])) == ""  # type: ignore[call-arg]

    class Other(optim.SGD):
        pass

    refused = {
        optim.LBFGS([parameter]): "all parameters together",
        optim.Adafactor([parameter]): "rows and columns",
        optim.Muon([parameter]): "whole matrices",
        Other([parameter]): "does not know",
        optim.Adam([parameter], differentiable=True): "differentiable",
        optim.Adam([torch.zeros(2, dtype=torch.complex64)]): "complex",
    }
    for optimizer, reason in refused.items():
        with pytest.raises(P3Error, match=reason):
            check_update("server", optimizer)
        assert not check_update("worker", optimizer)
    with pytest.raises(P3Error, match='choose "worker" or "server"'):
        check_update("both", optim.SGD([parameter]))


def test_updates_choose_the_engine() -> None:
    assert choose_engine("auto", 2, updates=True) is PS
    assert choose_engine(ENGINES["ps"], 2, updates=True) is PS
    with pytest.raises(P3Error, match="no servers that update"):
        choose_engine(GROUPS, 2, updates=True)
