"""A rank that dies ends training on every other one, with a clear error."""

from __future__ import annotations

import os
import re
import signal
import subprocess

import pytest
from support.ranks import SUPPORT, start_ranks

SECONDS = 10


def words(process: subprocess.Popen[str]) -> str:
    """The process's last line, once it has ended."""
    output, _ = process.communicate(timeout=SECONDS)
    return output.splitlines()[-1]


@pytest.mark.parametrize("engine", ["groups", "ps"])
@pytest.mark.parametrize("victim", [0, 3])
def test_a_killed_worker_is_named_on_every_other_rank(engine: str, victim: int) -> None:
    # Four ranks: in a ring of four one rank is not the dead one's neighbour.
    with start_ranks(SUPPORT / "mortal.py", [engine], world_size=4) as ranks:
        for rank in ranks:
            assert rank.stdout is not None
            assert rank.stdout.readline() == "trained\n"
        os.kill(ranks[victim].pid, signal.SIGKILL)
        survivors = [rank for number, rank in enumerate(ranks) if number != victim]
        for rank in survivors:
            said = words(rank)
            assert said.startswith("PeerLostError"), said
            assert re.search(rf"rank {victim} (at |\()127", said), said
        assert ranks[victim].wait() == -signal.SIGKILL
