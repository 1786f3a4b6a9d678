"""Training with P3 equals training alone on the joint batch, whatever the user does around it."""

from __future__ import annotations

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


@pytest.mark.parametrize(
    "scenario",
    ["tied_weights", "unused_parameters", "learning_rate_of_step", "accumulation"],
)
def test_equals_single_process_with(ranks: Ranks, scenario: str) -> None:
    assert all(result["distance"] < TOLERANCE for result in ranks.run(scenario))


def test_a_parameter_that_no_rank_used_is_left_alone(ranks: Ranks) -> None:
    # Not stepped with a zero gradient: weight decay and momentum would move it.
    assert not any(result["never_moved"] for result in ranks.run("unused_parameters"))


def test_a_checkpoint_resumes_bit_for_bit(ranks: Ranks) -> None:
    for result in ranks.run("checkpoint"):
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
    assert all("no more numbers" in error or "closed its" in error for error in errors)


def test_ranks_with_different_models_all_say_so(ranks: Ranks) -> None:
    for result in ranks.run("different_models"):
        assert result["kind"] == "PlanMismatchError"
        assert "[1]" in result["error"]


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
