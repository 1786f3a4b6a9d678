"""The MXNet shim, with the real MXNet 1.9.1 in an environment of its own (.venv-mxnet)."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.mxnet_ranks import dist_sync_roles, start_mxnet
from support.ranks import SUPPORT, Ranks

TOLERANCE = 2e-6
SECONDS = 20


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    """Two ranks that run scenarios; they must end well when their input does."""
    with start_mxnet(SUPPORT / "mxnet_rank.py", world_size=2) as processes:
        yield Ranks(processes)
        for process in processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in processes:
            assert process.wait(timeout=SECONDS) == 0


@pytest.mark.parametrize("optimizer", ["sgd", "nag", "adam"])
@pytest.mark.parametrize(
    ("hybrid", "on_store"), [(False, None), (True, None), (True, False), (False, False)]
)
def test_equals_one_process_on_the_joint_batch(
    ranks: Ranks, optimizer: str, hybrid: bool, on_store: bool | None
) -> None:
    results = ranks.run("equals_joint", optimizer, hybrid, on_store)
    for result in results:
        # Adam divides by the gradient's size, and blows rounding of small ones up.
        assert result["distance"] < TOLERANCE * (100 if optimizer == "adam" else 1)
        assert result["layers"] == [3, 3, 2, 2, 1, 1, 0, 0]  # keys are in the names' order
    assert len({result["digest"] for result in results}) == 1


def test_half_precision_is_summed(ranks: Ranks) -> None:
    # 1 - 2 steps x 0.5 x (0.5 + 1.5)
    assert ranks.run("half") == [{"values": [-1.0], "dtype": "float16"}] * 2


def test_twice_the_same_run_is_bit_for_bit_the_same(ranks: Ranks) -> None:
    runs = [ranks.run("equals_joint", "sgd", True, None) for _ in range(2)]
    assert len({result["digest"] for run in runs for result in run}) == 1


def test_a_trainers_states_resume_bit_for_bit(ranks: Ranks, tmp_path: Path) -> None:
    for result in ranks.run("by_name", str(tmp_path)):
        assert len(set(result["digests"])) == 1
        assert result["warnings"] == ["NoOrderWarning", "NoAgentWarning"]


def test_module_trains_too(ranks: Ranks) -> None:
    assert len({result["digest"] for result in ranks.run("module")}) == 1


def test_a_layer_waits_for_its_own_sums_only(ranks: Ranks) -> None:
    assert ranks.tell('["waits", []]\n') == ["has layer 0", "has layer 0"]
    assert ranks.tell("\n") == [{"first": 5.0 - 2.0, "later": 2 * (5.0 - 4.0)}] * 2


def test_what_cannot_be_summed_is_refused(ranks: Ranks) -> None:
    for result in ranks.run("refusals"):
        devices, sparse, pushed, integers, compressed = result["said"]
        assert "is on 2 devices" in devices
        assert "is row_sparse" in sparse
        assert "has a row_sparse gradient" in pushed
        assert "is int32" in integers
        assert "does not compress" in compressed


def test_another_model_is_an_error_on_every_rank(ranks: Ranks) -> None:
    for result in ranks.run("differs"):
        assert result["said"].startswith("PlanMismatchError: ranks [1] have a different slice plan")


def test_the_same_parameters_as_dist_sync(ranks: Ranks, tmp_path: Path) -> None:
    for result in ranks.run("native", str(tmp_path), "dist_p3"):
        assert not result["foreign"]
    with (
        dist_sync_roles(2) as roles,
        start_mxnet(SUPPORT / "mxnet_rank.py", world_size=2, environment=roles) as processes,
    ):
        Ranks(processes).run("native", str(tmp_path), "dist_sync")
    for rank in range(2):
        with (
            np.load(tmp_path / f"dist_p3-{rank}.npz") as ours,
            np.load(tmp_path / f"dist_sync-{rank}.npz") as theirs,
        ):
            for name in ours.files:
                np.testing.assert_allclose(ours[name], theirs[name], rtol=0, atol=TOLERANCE)


def words(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=SECONDS)
    return output.splitlines()[-1]


@pytest.mark.parametrize("victim", [0, 2])
def test_a_killed_worker_is_named_on_every_other_rank(victim: int) -> None:
    with start_mxnet(SUPPORT / "mxnet_mortal.py", world_size=3) as ranks:
        for rank in ranks:
            assert rank.stdout is not None
            assert rank.stdout.readline() == "trained\n"
        os.kill(ranks[victim].pid, signal.SIGKILL)
        for number, rank in enumerate(ranks):
            if number != victim:
                said = words(rank)
                assert f"rank {victim} at 127" in said, said
                assert rank.returncode == 0
