"""Runs an MXNet program as one rank on every node of a test cluster, with P3's agents.

The program finds RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in its environment, and is run by
.venv-mxnet's Python, in the current folder.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments import launch
from p3_shaper.cluster import Cluster, ClusterError
from p3_shaper.rates import RateError, parse_rate

INTERPRETER = launch.SCRIPTS.parent / ".venv-mxnet" / "bin" / "python"
OVERLAP = {
    # Not several operators as one, nor several updates: a layer's gradient and update alone.
    "MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN": "1",
    "MXNET_OPTIMIZER_AGGREGATION_SIZE": "1",
}
"""What MXNet needs to be told to compute and communicate layer by layer."""
_PORT = 29400


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Options from the command line; SystemExit with status 2 for what makes no sense."""
    parser = argparse.ArgumentParser(prog="launch-mxnet", description=__doc__)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--rate", type=str, default="1gbit", help="of every link (1gbit)")
    parser.add_argument("--no-agents", action="store_true", help="without p3-agent on the nodes")
    parser.add_argument("--logs", type=Path, default=Path("out/launch-mxnet"), help="of the agents")
    parser.add_argument("program", help="a Python program")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    chosen = parser.parse_args(arguments)
    if chosen.nodes < 1:
        parser.error(f"--nodes {chosen.nodes}: choose 1 or more")
    if not Path(chosen.program).is_file():
        parser.error(f"{chosen.program}: no such file")
    try:
        chosen.rate = parse_rate(chosen.rate)
    except RateError as error:
        parser.error(str(error))
    return chosen


def run(chosen: argparse.Namespace) -> int:
    """1 when a rank failed, else 0. Raises ClusterError, LaunchError."""
    with Cluster(chosen.nodes, chosen.rate) as cluster:
        rate = None if chosen.no_agents else chosen.rate
        with launch.surroundings(cluster, chosen.logs, rate) as around:
            ranks = [
                node.popen(
                    [str(INTERPRETER), chosen.program, *chosen.arguments],
                    env={
                        **OVERLAP,
                        **environment,
                        **launch.rank_environment(cluster, node.index, _PORT),
                    },
                )
                for node, environment in zip(cluster.nodes, around.environments, strict=True)
            ]
            statuses = [rank.wait() for rank in ranks]
    for rank, status in enumerate(statuses):
        if status != 0:
            how = f"status {status}" if status > 0 else f"signal {-status}"
            print(f"launch-mxnet: rank {rank} ended with {how}", file=sys.stderr)
    return int(any(statuses))


def main() -> int:
    """The command; 1 when a rank failed."""
    chosen = parse(sys.argv[1:])
    try:
        return run(chosen)
    except (ClusterError, launch.LaunchError) as error:
        print(f"launch-mxnet: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("launch-mxnet: interrupted; everything it made is removed", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
