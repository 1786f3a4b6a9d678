"""Many ranks on one machine, each in a network namespace of its own: what each of them holds."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from experiments.report import table
from p3_shaper.cluster import MAX_NODES, Cluster, ClusterError

RANKS = 32
ENGINES = ("groups", "ps")
TIMEOUT_S = 600.0
SCRIPTS = Path(__file__).parents[1]


class Holding(msgspec.Struct, frozen=True):
    """What one rank's `engine` held while it trained, torch.distributed's own not counted.

    `left` are threads and sockets that are still there when it has closed; `seconds` is the time
    for setting it up and a few iterations.
    """

    rank: int
    engine: str
    bands: int
    threads: int
    sockets: int
    left: int
    seconds: float
    digest: str


def run(ranks: int) -> list[Holding]:
    """Every rank's, by every engine. Raises ClusterError, CalledProcessError or TimeoutExpired."""
    with Cluster(ranks) as cluster:
        names = [node.name for node in cluster.nodes]
        done = subprocess.run(
            [sys.executable, "-m", "experiments.ranks_node", cluster.nodes[0].address, *names],
            stdout=subprocess.PIPE,
            check=True,
            timeout=TIMEOUT_S,
            env={
                **os.environ,
                "PYTHONPATH": str(SCRIPTS),
                "P3_AGENT_SOCKET": "/nonexistent",
                # Every rank would say that its address has no name.
                "TORCH_CPP_LOG_LEVEL": "ERROR",
            },
        )
    return [msgspec.json.decode(line, type=Holding) for line in done.stdout.splitlines()]


def text(found: Sequence[Holding]) -> str:
    """A table with a row for each engine: the most that any rank held. Pure."""
    header = ("engine", "ranks", "bands", "threads", "sockets", "left behind", "seconds", "alike")
    rows: list[Sequence[str]] = []
    for engine in ENGINES:
        held = [one for one in found if one.engine == engine]
        numbers = (
            *(len(held), max(one.bands for one in held)),
            *(max(one.threads for one in held), max(one.sockets for one in held)),
            max(one.left for one in held),
        )
        alike = "yes" if len({one.digest for one in held}) == 1 else "NO"
        seconds = f"{max(one.seconds for one in held):.1f}"
        rows.append((engine, *map(str, numbers), seconds, alike))
    return table(header, rows)


def main() -> int:
    """The command; 1 when a rank failed."""
    parser = argparse.ArgumentParser(prog="bench_ranks", description=__doc__)
    parser.add_argument("--ranks", type=int, default=RANKS)
    ranks = parser.parse_args().ranks
    if not 2 <= ranks <= MAX_NODES:
        parser.error(f"--ranks {ranks}: choose 2 to {MAX_NODES}")
    try:
        found = run(ranks)
    except (ClusterError, subprocess.SubprocessError) as error:
        print(f"bench_ranks: {error}", file=sys.stderr)
        return 1
    print(text(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
