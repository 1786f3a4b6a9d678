"""Ranks that stay up for a module's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.ranks import SUPPORT, WORKERS, Ranks, start_ranks


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    """Three ranks that run scenarios; they must end well when their input does."""
    with start_ranks(SUPPORT / "rank.py") as processes:
        yield Ranks(processes)
        for process in processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in processes:
            assert process.wait(timeout=30) == 0


@pytest.fixture(scope="session")
def pair() -> Iterator[Ranks]:
    """Two ranks that run scenarios; they must end well when their input does."""
    with start_ranks(SUPPORT / "rank.py", world_size=2) as processes:
        yield Ranks(processes)
        for process in processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in processes:
            assert process.wait(timeout=30) == 0


@pytest.fixture(scope="session")
def served() -> Iterator[Ranks]:
    """Two workers that run scenarios, and two servers; all end well when the workers do."""
    with start_ranks(SUPPORT / "served_rank.py", [str(WORKERS)], world_size=4) as processes:
        yield Ranks(processes[:WORKERS])
        for process in processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in processes:
            assert process.wait(timeout=30) == 0
