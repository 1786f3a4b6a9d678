"""The MXNet shim, with the real MXNet 1.9.1 in an environment of its own (.venv-mxnet)."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.mxnet_ranks import dist_sync_roles, start_mxnet
from support.ranks import SUPPORT, WAIT_S, Ranks, ended_after

TOLERANCE = 2e-6
SECONDS = 20
ENDS = {"end": 0, "exit": 3, "raise": 1}
EXITS = int(os.environ.get("P3_EXITS", "3"))
"""How many; 100 in a row take minutes."""


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
    # Gradients are 0.5 + 1.5, momentum halves: 1 - 0.25 x 2 - 0.25 x (2 + 1)
    assert ranks.run("half") == [{"values": [-0.25], "dtype": "float16"}] * 2


def test_twice_the_same_run_is_bit_for_bit_the_same(ranks: Ranks) -> None:
    runs = [ranks.run("equals_joint", "sgd", True, None) for _ in range(2)]
    assert len({result["digest"] for run in runs for result in run}) == 1


def test_a_trainers_states_resume_bit_for_bit(ranks: Ranks, tmp_path: Path) -> None:
    for result in ranks.run("by_name", str(tmp_path)):
        assert len(set(result["digests"])) == 1
        assert result["warnings"] == ["NoOrderWarning", "NoAgentWarning"]


def assert_as_alone(results: list[dict[str, Any]]) -> None:
    assert all(result["distance"] < TOLERANCE for result in results)
    assert len({result["digest"] for result in results}) == 1


@pytest.mark.parametrize("on_store", [True, False])
@pytest.mark.parametrize("fixed", [[], ["m_weight", "z_bias"]])
def test_module_equals_one_process_too(ranks: Ranks, on_store: bool, fixed: list[str]) -> None:
    assert_as_alone(ranks.run("module", on_store, fixed))


@pytest.mark.parametrize("watched", [True, False])
def test_a_parameter_frozen_for_a_while_holds_none_up(ranks: Ranks, watched: bool) -> None:
    assert_as_alone(ranks.run("frozen", watched))


def test_a_network_from_a_file_has_its_graphs_order(ranks: Ranks, tmp_path: Path) -> None:
    # Keys are in the names' order: a_bias, a_weight, x_bias, …
    assert ranks.run("imported", str(tmp_path)) == [{"layers": [7, 6, 5, 4, 3, 2, 1, 0]}] * 2


def test_a_fork_waits_for_the_sums_under_way(ranks: Ranks) -> None:
    results = ranks.run("forks")
    assert [result["statuses"] for result in results] == [[0] * 3] * 2
    assert len({result["digest"] for result in results}) == 1


def test_arrays_of_the_numpy_interface(ranks: Ranks) -> None:
    for result in (results := ranks.run("numpy_interface")):
        result["distance"] /= 100  # Adam
    assert_as_alone(results)


def test_a_layer_waits_for_its_own_sums_only(ranks: Ranks) -> None:
    assert ranks.tell('["waits", []]\n') == ["has layer 0", "has layer 0"]
    assert ranks.tell("\n") == [{"first": 5.0 - 2.0, "later": 2 * (5.0 - 4.0)}] * 2


def test_what_cannot_be_summed_is_refused(ranks: Ranks) -> None:
    two_devices = "P3Error: parameter {} is on 2 devices"
    expected = {
        "devices": two_devices.format(0),
        "devices of a module": two_devices.format("f_weight"),
        "sparse gradient": "ValueError: Cannot use <class 'p3.mxnet.Dist_P3'> for",
        "sparse": "P3Error: parameter 0 is row_sparse",
        "pushed": "P3Error: parameter 0 has a row_sparse gradient",
        "integers": "P3Error: parameter 0 is int32",
        "compressed": "P3Error: dist_p3 does not compress",
        "naive": "P3Error: MXNET_ENGINE_TYPE is NaiveEngine",
    }
    for said in ranks.run("refusals"):
        assert said.keys() == expected.keys()
        for name, begins in expected.items():
            assert said[name].startswith(begins), said[name]


def test_another_model_is_an_error_on_every_rank(ranks: Ranks) -> None:
    for result in ranks.run("differs"):
        assert result["said"].startswith("PlanMismatchError: ranks [1] have a different slice plan")


def train_with_dist_sync(directory: Path) -> None:
    """MXNet's own store leaves its parameters; ps-lite sometimes fails a check of its own."""
    for last in (False, False, True):
        with (
            dist_sync_roles(2) as roles,
            start_mxnet(SUPPORT / "mxnet_rank.py", world_size=2, environment=roles) as processes,
        ):
            try:
                Ranks(processes).run("native", str(directory), "dist_sync")
            except (AssertionError, BrokenPipeError):
                if last or -signal.SIGABRT not in [process.poll() for process in processes]:
                    raise
            else:
                return


def test_the_same_parameters_as_dist_sync(ranks: Ranks, tmp_path: Path) -> None:
    for result in ranks.run("native", str(tmp_path), "dist_p3"):
        assert not result["foreign"]
    train_with_dist_sync(tmp_path)
    for rank in range(2):
        with (
            np.load(tmp_path / f"dist_p3-{rank}.npz") as ours,
            np.load(tmp_path / f"dist_sync-{rank}.npz") as theirs,
        ):
            for name in ours.files:
                np.testing.assert_allclose(ours[name], theirs[name], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("run", range(EXITS))
def test_an_exit_never_hangs(run: int) -> None:
    way = list(ENDS)[run % len(ENDS)]
    with start_mxnet(SUPPORT / "mxnet_leaver.py", world_size=2, arguments=[way]) as ranks:
        assert [rank.wait(timeout=SECONDS) for rank in ranks] == [ENDS[way]] * 2


def words(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=SECONDS)
    return output.splitlines()[-1]


@pytest.mark.parametrize("victim", [0, 2])
def test_a_killed_worker_is_named_on_every_other_rank(victim: int) -> None:
    with start_mxnet(SUPPORT / "mxnet_mortal.py", world_size=3) as ranks:
        for rank in ranks:
            assert rank.stdout is not None
            with ended_after(WAIT_S, rank.kill):
                assert rank.stdout.readline() == "trained\n"
        os.kill(ranks[victim].pid, signal.SIGKILL)
        for number, rank in enumerate(ranks):
            if number != victim:
                said = words(rank)
                assert f"rank {victim} at 127" in said, said
                assert rank.returncode == 0
