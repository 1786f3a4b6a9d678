"""Training with P3 equals training alone on the joint batch, whatever the user does around it."""

from __future__ import annotations

from typing import Any

import pytest
from support.ranks import Ranks

TOLERANCE = 2e-5


@pytest.mark.parametrize("engine", ["groups", "ps"])
@pytest.mark.parametrize("optimizer", ["sgd", "nesterov", "adam", "adamw"])
def test_equals_single_process_on_the_joint_batch(
    ranks: Ranks, optimizer: str, engine: str
) -> None:
    results = ranks.run("equals_single_process", optimizer, engine)
    assert all(result["distance"] < TOLERANCE for result in results)
    assert len({result["digest"] for result in results}) == 1


def test_an_engine_that_p3_does_not_know_trains_too(ranks: Ranks) -> None:
    for result in ranks.run("third_engine"):
        assert result["engine"] == "PlainAllReduce"
        assert result["distance"] < TOLERANCE


@pytest.mark.parametrize("engine", ["groups", "ps"])
def test_twice_the_same_run_is_bit_for_bit_the_same(ranks: Ranks, engine: str) -> None:
    digests = {digest for result in ranks.run("repeated", engine) for digest in result["digests"]}
    assert len(digests) == 1


@pytest.mark.parametrize("engine", ["groups", "ps"])
@pytest.mark.parametrize(
    "scenario",
    ["tied_weights", "unused_parameters", "learning_rate_of_step", "accumulation"],
)
def test_equals_single_process_with(ranks: Ranks, scenario: str, engine: str) -> None:
    assert all(result["distance"] < TOLERANCE for result in ranks.run(scenario, engine))


def test_a_parameter_that_no_rank_used_is_left_alone(ranks: Ranks) -> None:
    # Not stepped with a zero gradient: weight decay and momentum would move it.
    assert not any(result["never_moved"] for result in ranks.run("unused_parameters", "groups"))


@pytest.mark.parametrize("engine", ["groups", "ps"])
def test_a_checkpoint_resumes_bit_for_bit(ranks: Ranks, engine: str) -> None:
    for result in ranks.run("checkpoint", engine):
        assert result["same"]
        assert result["keys"] == [
            "0.bias", "0.weight", "3.bias", "3.weight", "5.bias", "5.weight",
        ]  # fmt: skip


def test_gradients_without_a_step_are_dropped(ranks: Ranks) -> None:
    for result in ranks.run("dropped_gradients"):
        assert result["unchanged"]
        assert result["distance"] < TOLERANCE


def test_misuse_is_refused_with_a_sentence(ranks: Ranks) -> None:
    for said in ranks.run("misuse"):
        assert "closure" in said["lbfgs"]
        assert "model.parameters()" in said["foreign"]
        assert "without one" in said["closure"]
        assert "add the group first" in said["group"]
        assert "already distributed" in said["again"]


def test_an_optimizer_that_raises_is_heard_in_training(ranks: Ranks) -> None:
    errors = [result["error"] for result in ranks.run("optimizer_that_fails")]
    assert any("no more numbers" in error for error in errors)
    # A rank whose sums were not in yet hears that another one stopped.
    assert all("no more numbers" in error or "has ended" in error for error in errors)


def test_ranks_that_differ_all_say_so(ranks: Ranks) -> None:
    for said in ranks.run("different_models"):
        assert said == {
            name: f"PlanMismatchError: ranks [1] have a different {what}; it must be the same on "
            "every rank"
            for name, what in {
                "size": "model than rank 0: weight: torch.float32 [12, 11] on rank 1, "
                "weight: torch.float32 [11, 11] on rank 0",
                "dtype": "model than rank 0: weight: torch.float64 [11, 11] on rank 1, "
                "weight: torch.float32 [11, 11] on rank 0",
                "slices": "slice_numel than rank 0: 100 on rank 1, 50 on rank 0",
                "timeout": "value of servers, update, broadcast_buffers, timeout or "
                "codec than rank 0: "
                "2.5 s on rank 1, 3 s on rank 0",
            }.items()
        }


@pytest.mark.parametrize("engine", ["groups", "ps"])
def test_statistics_add_up_and_an_agent_hears_of_the_job(ranks: Ranks, engine: str) -> None:
    results = ranks.run("statistics", engine)
    for result in results:
        assert result["untouched"]
        assert result["iterations"] == result["steps"]
        assert result["layers"] == ["0", "3", "5"]
        assert all(wait >= 0 for wait in result["waits"])
        assert sum(result["waits"]) == pytest.approx(result["waited_s"])
        assert result["communication_s"] > 0
        assert 0 <= result["overlap"] <= 1
        assert len(result["bytes_by_band"]) == len(result["layers"])
        assert sum(result["bytes_by_band"]) == result["bytes"] > 0
        assert result["left"]
    # The name that all ranks share tells processes of one job from those of another.
    (job,) = {result["job"] for result in results}
    assert job.startswith("rank:job")


PHASES = {
    "groups": {"queued", "all-reduce"},
    "ps": {"queued", "sending", "aggregation", "return"},
}


@pytest.mark.parametrize(
    ("engine", "update", "compiled"),
    [("groups", "worker", True), ("ps", "worker", False), ("ps", "server", False)],
)
def test_a_timeline_has_every_slice_and_every_pass(
    ranks: Ranks, engine: str, update: str, compiled: bool
) -> None:
    for rank, result in enumerate(ranks.run("timeline", engine, update, compiled)):
        assert result["file"] == f"out.{rank}.json"
        assert result["trace"]["otherData"] == {"rank": rank, "forgotten": 0}
        events = result["trace"]["traceEvents"]
        spans = [event for event in events if event["ph"] == "X"]
        tracks = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
        assert [name.split(":")[0] for name in tracks.values()] == [f"rank {rank}"] * len(tracks)
        bands = {pid for pid, name in tracks.items() if "band" in name}
        assert len(bands) == result["bands"]
        told = [e for e in spans if e["pid"] in bands and e.get("args")]
        slices = [e for e in told if not e["name"].startswith(("sum of ", "to rank "))]
        assert len(slices) == len({(e["args"]["slice"], e["args"]["iteration"]) for e in slices})
        assert len(slices) == result["slices"] > 0
        assert {e["pid"] for e in slices} == bands
        phases = {e["name"] for e in spans if e["pid"] in bands and not e.get("args")}
        assert phases == PHASES[engine]
        assert sum(e["name"].startswith("forward ") for e in spans) == 5 * 7
        assert sum(e["name"].startswith("backward ") for e in spans) == 5 * 6
        for pid in tracks:
            for tid in {e["tid"] for e in spans if e["pid"] == pid}:
                assert_nested([e for e in spans if (e["pid"], e["tid"]) == (pid, tid)])


def assert_nested(spans: list[dict[str, Any]]) -> None:
    """In one lane spans follow each other or lie within each other."""
    open_until: list[int] = []
    for span in sorted(spans, key=lambda span: (span["ts"], -span["dur"])):
        while open_until and open_until[-1] <= span["ts"]:
            open_until.pop()
        end = span["ts"] + span["dur"]
        assert not open_until or end <= open_until[-1], span
        open_until.append(end)


def test_a_timeline_that_cannot_be_written_is_refused_at_once(ranks: Ranks) -> None:
    for result in ranks.run("timeline_refused"):
        assert "/nonexistent/out." in result["error"]
        assert "No such file" in result["error"]


def test_a_timeline_is_written_after_an_error(ranks: Ranks) -> None:
    for result in ranks.run("timeline_of_failure"):
        assert result["failed"]
        assert result["slices"] > 0
