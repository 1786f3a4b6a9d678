"""Whatever a training loop does around backward() and step(), P3 trains as one process does."""

from __future__ import annotations

import pytest
from support.ranks import Ranks

TOLERANCE = 2e-5
ENGINES = ["groups", "ps"]
SILENT = [
    "plain", "accumulated_in_part", "many_forwards", "scheduled", "from_graph",
]  # fmt: skip
READING = ["clipped_norm", "clipped_value", "edited", "looked_at"]
SENDING_AGAIN = ["zeroed_in_turn", "two_losses", "accumulated_aloud", "accumulated_all"]
BOTH = ["clipped_between"]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("loop", SILENT + READING + SENDING_AGAIN + BOTH)
def test_loop_equals_one_process(pair: Ranks, loop: str, engine: str) -> None:
    results = pair.run("compare", loop, "nesterov", engine)
    for result in results:
        assert result["distance"] < TOLERANCE
        assert result["off"] < TOLERANCE
    assert len({result["digest"] for result in results}) == 1


@pytest.mark.parametrize("loop", SILENT + READING + SENDING_AGAIN + BOTH)
def test_what_costs_overlap_is_told_once(pair: Ranks, loop: str) -> None:
    for result in pair.run("compare", loop, "adam", "groups"):
        assert sum("was read" in text for text in result["told"]) == (loop in READING + BOTH)
        assert sum("sends all" in text for text in result["told"]) == (loop in SENDING_AGAIN + BOTH)


@pytest.mark.parametrize("make", ["grouped", "rmsprop", "adagrad", "fused", "foreach"])
def test_optimizer_equals_one_process(pair: Ranks, make: str) -> None:
    for result in pair.run(
        "compare", "scheduled" if make == "grouped" else "clipped_norm", make, "groups"
    ):
        assert result["distance"] < TOLERANCE
        assert result["off"] < TOLERANCE


def test_reading_gradients_that_do_not_come_back_is_refused(pair: Ranks) -> None:
    for result in pair.run("read_where_parameters_return"):
        assert list(result["said"]) == result["attempts"]
        for error in result["said"].values():
            assert 'use update="worker"' in error


@pytest.mark.parametrize(
    ("how", "compiled", "engine"),
    [
        ("dropped", "", "groups"),
        ("dropped", "", "ps"),
        ("twice", "", "groups"),
        ("functional", "", "groups"),
        ("reentrant", "", "groups"),
        ("all_reentrant", "", "ps"),
        ("not_reentrant", "", "groups"),
        ("plain", "before", "groups"),
        ("plain", "after", "groups"),
        ("plain", "blocks", "ps"),
    ],
)
def test_forward_equals_one_process(pair: Ranks, how: str, compiled: str, engine: str) -> None:
    results = pair.run("forward_of", how, compiled, engine)
    for result in results:
        assert result["distance"] < TOLERANCE
        assert not result["told"]
    assert len({result["digest"] for result in results}) == 1


@pytest.mark.parametrize(
    ("unscale", "dtype", "fused"),
    [("yes", "bfloat16", ""), ("", "bfloat16", "yes"), ("", "float16", ""), ("yes", "float16", "")],
)
def test_mixed_precision_equals_ddp(pair: Ranks, unscale: str, dtype: str, fused: str) -> None:
    results = pair.run("amp", unscale, dtype, fused)
    for result in results:
        assert result["distance"] < TOLERANCE
        assert result["scales"] == result["expected"]
    # Rank 1's infinite loss made both skip the step.
    assert results[0]["scales"][2] == results[0]["scales"][1] / 2
    assert len({result["digest"] for result in results}) == 1


def test_a_layer_thawed_later_is_refused(pair: Ranks) -> None:
    for result in pair.run("frozen"):
        assert result["distance"] < TOLERANCE
        assert "stem.weight" in result["error"]


@pytest.mark.parametrize("engine", ENGINES)
def test_two_optimizers_whose_losses_meet_equal_one_process(pair: Ranks, engine: str) -> None:
    results = pair.run("adversaries", engine)
    assert all(result["distance"] < TOLERANCE for result in results)
    assert len({result["digest"] for result in results}) == 1


def test_copies_and_saved_models_are_plain_and_complete(pair: Ranks) -> None:
    results = pair.run("copies")
    assert all(all(result.values()) for result in results)
    assert results[0]["digests"] == results[1]["digests"]


def test_saved_states_are_the_same_on_every_rank(pair: Ranks) -> None:
    first, second = pair.run("states")
    assert first == second
    assert len(first["optimizer"]) == 3 * len(first["model"])
    # The schedule and the hook were the user's optimizer's, before.
    assert first["rate"] == 1e-2 / 4
    assert first["steps"] == 12
