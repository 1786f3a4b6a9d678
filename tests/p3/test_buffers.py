"""Buffers and uneven ranks: what all ranks hold in the end is what DDP's hold, or one process."""

from __future__ import annotations

import pytest
from support.ranks import Ranks

TOLERANCE = 2e-5


@pytest.mark.parametrize(
    ("engine", "update"), [("groups", "worker"), ("ps", "worker"), ("ps", "server")]
)
def test_buffers_are_rank_0s_as_under_ddp(pair: Ranks, engine: str, update: str) -> None:
    first, second = pair.run("buffers", engine, update, True)
    assert first["same"]
    assert second["same"]
    assert first["buffers"] == first["ddp"]
    # Everywhere the same, at once: in evaluation between the steps, and in what is saved.
    for what in ("buffers", "seen", "saved"):
        assert first[what] == second[what]


def test_buffers_stay_each_ranks_own_where_asked(pair: Ranks) -> None:
    first, second = pair.run("buffers", "groups", "worker", False)
    for result in (first, second):
        assert result["same"]
        assert result["buffers"] == result["ddp"]
    assert first["buffers"] != second["buffers"]


def test_a_buffer_that_changes_its_shape_is_refused(pair: Ranks) -> None:
    first, second = pair.run("buffer_that_grows")
    assert "counted.mean" in first["error"]
    assert "broadcast_buffers=False" in first["error"]
    assert "rank 0" in second["error"]


@pytest.mark.parametrize(
    ("make", "engine", "update", "clipped"),
    [
        ("sgd", "groups", "worker", True),
        ("adamw", "ps", "worker", False),
        ("adamw", "ps", "server", False),
    ],
)
def test_ranks_that_join_equal_one_process(
    pair: Ranks, make: str, engine: str, update: str, clipped: bool
) -> None:
    results = pair.run("joined", make, engine, update, clipped)
    for result in results:
        assert result["distance"] < TOLERANCE
        assert result["off"] < TOLERANCE
    for what in ("digest", "state"):
        assert results[0][what] == results[1][what]


@pytest.mark.parametrize(
    ("counts", "engine", "calls"), [([5, 2], "groups", 5), ([1, 4], "ps", 1 + 3 * 2)]
)
def test_buffers_end_as_those_of_the_rank_that_trains_longest(
    pair: Ranks, counts: list[int], engine: str, calls: int
) -> None:
    first, second = pair.run("joined_buffers", counts, engine)
    assert first == second
    assert first["calls"] == calls


@pytest.mark.parametrize("engine", ["groups", "ps"])
def test_ranks_that_do_not_join_say_so(pair: Ranks, engine: str) -> None:
    first, second = pair.run("not_joined", engine)
    assert first == {}  # it owed nothing
    # What rank 1 notices first, a goodbye or a closed connection, is not settled.
    assert "rank 0" in second["error"]
