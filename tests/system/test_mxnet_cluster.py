"""MXNet over a cluster's nodes: the launcher, and the bench's programs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from experiments import bench_mxnet
from experiments.launch_mxnet import INTERPRETER
from experiments.setting import parse_setting

ROOT = Path(__file__).parents[2]
TORCHRUN = ROOT / ".venv" / "bin" / "torchrun"
LAUNCH = ROOT / "scripts" / "launch-mxnet"
SECONDS = 120
PROGRAM = """
import sys
import mxnet as mx
from p3.mxnet import Dist_P3

store = Dist_P3()
if sys.argv[1] == "fail" and store.rank == 1:
    sys.exit("no data on this node")
weight, gradient = mx.nd.zeros(3), mx.nd.ones(3) * (store.rank + 1)
store.broadcast("w", weight, [weight])
store.pushpull("w", gradient)
# One write each: the ranks share a pipe.
print(f"rank {store.rank} has {gradient.asnumpy()[0]}\\n", end="", flush=True)
"""


def launched(tmp_path: Path, argument: str) -> subprocess.CompletedProcess[str]:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    options = ["--nodes", "2", "--rate", "500mbit", "--logs", str(tmp_path / "logs")]
    return subprocess.run(
        [LAUNCH, *options, program, argument],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )


def test_a_program_runs_on_every_node_with_its_agent(tmp_path: Path) -> None:
    done = launched(tmp_path, "train")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["rank 0 has 3.0", "rank 1 has 3.0"]
    assert "no p3-agent answers" not in done.stderr


def test_torchrun_starts_ranks_too(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    options = ["--nproc-per-node", "2", "--no-python"]
    done = subprocess.run(
        [TORCHRUN, *options, INTERPRETER, program, "train"],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["rank 0 has 3.0", "rank 1 has 3.0"]


def test_a_rank_that_fails_ends_the_others(tmp_path: Path) -> None:
    done = launched(tmp_path, "fail")
    assert done.returncode == 1
    assert "launch-mxnet: rank 1 ended with status 1" in done.stderr
    assert "rank 1 is lost at the start" in done.stderr


def test_all_of_the_benchs_stores_train_alike(tmp_path: Path) -> None:
    arguments = ["--nodes", "2", "--iterations", "3", "--logs", str(tmp_path)]
    options = bench_mxnet.parse([*arguments, "--settings", "resnet50@500mbit"])
    setting = parse_setting("resnet50@500mbit")
    losses = []
    for system in (each for each in bench_mxnet.SYSTEMS if each != bench_mxnet.ALONE):
        outcome = bench_mxnet.measure(options, setting, system, system.title)
        assert outcome.digest is not None
        losses.append(outcome.loss)
    assert losses[1:] == pytest.approx(losses[:1] * 2, abs=1e-5)
