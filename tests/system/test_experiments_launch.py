"""Launching on a real cluster: results come back, and every failure is a sentence."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from support.clusters import MakeCluster

from experiments import launch
from experiments.messages import Event, Finished, Iterated, Started
from experiments.outcome import Outcome
from p3_shaper.rates import parse_rate

RATE = parse_rate("500mbit")


def training(*arguments: str, iterations: int = 4) -> launch.Program:
    return launch.Program(
        "training",
        "experiments.train",
        ("--workload", "resnet50", "--iterations", str(iterations), *arguments),
    )


@pytest.mark.parametrize("engine", ["groups", "ps"])
def test_two_p3_runs_end_with_the_same_parameters(
    make_cluster: MakeCluster, tmp_path: Path, engine: str
) -> None:
    cluster = make_cluster(nodes=2, rate=RATE)
    digests = set()
    for _ in range(2):
        told = launch.run(cluster, training("--system", "p3", "--engine", engine), tmp_path)
        outcome = Outcome(tuple(launch.finished(told)))
        digests.add(outcome.digest)
        assert outcome.ranks[0].payload_bytes > 0
        assert all(rank.sent_bytes > rank.payload_bytes for rank in outcome.ranks)
    assert len(digests) == 1
    assert None not in digests


class KillATrainer:
    """Kills the trainer of node 1 once rank 0 has done its second iteration."""

    def __init__(self) -> None:
        self.pid = 0

    def __call__(self, event: Event) -> None:
        if isinstance(event, Started) and event.rank == 1:
            self.pid = event.pid
        if isinstance(event, Iterated) and event.iteration == 1:
            os.kill(self.pid, signal.SIGKILL)


@pytest.mark.parametrize(
    "system", [("ddp",), ("p3", "--engine", "groups"), ("p3", "--engine", "ps")]
)
def test_a_killed_trainer_is_named(
    make_cluster: MakeCluster, tmp_path: Path, system: tuple[str, ...]
) -> None:
    killer = KillATrainer()
    with pytest.raises(launch.LaunchError) as raised:
        launch.run(
            make_cluster(nodes=2, rate=RATE),
            training("--system", *system, iterations=10_000),
            tmp_path,
            on_event=killer,
        )
    sentence = str(raised.value)
    assert sentence.startswith(f"training on node 1 (process {killer.pid}) was killed")
    assert "; node 0: " in sentence
    assert str(tmp_path / "training1.log") in sentence


def test_a_program_that_cannot_start_is_named(make_cluster: MakeCluster, tmp_path: Path) -> None:
    program = launch.Program("nothing", "experiments.no_such_module", ())
    with pytest.raises(launch.LaunchError, match=r"nothing on node [01] ended with status 1"):
        launch.run(make_cluster(nodes=2), program, tmp_path)


def test_a_trainers_error_is_told_in_its_own_words(
    make_cluster: MakeCluster, tmp_path: Path
) -> None:
    program = training("--system", "p3", "--slice-numel", "0")
    with pytest.raises(launch.LaunchError, match=r"failed on node [01]: .*slice_numel"):
        launch.run(make_cluster(nodes=2), program, tmp_path)


def test_agents_come_and_go_with_the_run(make_cluster: MakeCluster, tmp_path: Path) -> None:
    cluster = make_cluster(nodes=2, rate=RATE)
    show = ["tc", "qdisc", "show", "dev", cluster.nodes[0].device]
    before = cluster.nodes[0].run(show).stdout
    during: list[str] = []

    def look(event: Event) -> None:
        if isinstance(event, Iterated):
            during.append(cluster.nodes[0].run(show).stdout)

    told = launch.run(cluster, training("--system", "p3"), tmp_path, agent_rate=RATE, on_event=look)
    assert [type(event) for event in told].count(Finished) == 2
    assert before not in during
    assert cluster.nodes[0].run(show).stdout == before


def test_an_agent_that_fails_is_named(make_cluster: MakeCluster, tmp_path: Path) -> None:
    cluster = make_cluster(nodes=2, rate=RATE)
    cluster.nodes[1].run(["ip", "link", "delete", cluster.nodes[1].device])
    with pytest.raises(launch.LaunchError, match="p3-agent on node 1 ended with status"):
        launch.run(cluster, training("--system", "p3"), tmp_path, agent_rate=RATE)
