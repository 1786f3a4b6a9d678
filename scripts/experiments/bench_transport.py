"""How fast slices travel between two nodes whose links are not shaped, and what that costs.

Beside P3's engines: iperf3, and gloo's all-reduce of the same bytes; all in turns in one run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments import launch, numbers_file
from experiments.messages import Event, Measured
from experiments.transports import NAMES, TITLES, summary, text
from p3_shaper.cluster import Cluster, ClusterError

NODES = 2
ROUNDS = 5
MEGABYTES = 100


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asked for."""

    megabytes: int
    rounds: int
    transports: tuple[str, ...]
    json: Path | None
    logs: Path


def parse(arguments: Sequence[str]) -> Options:
    """Options from the command line; SystemExit with status 2 for what makes no sense."""
    parser = argparse.ArgumentParser(prog="bench_transport", description=__doc__)
    parser.add_argument("--megabytes", type=int, default=MEGABYTES, help="to sum in each round")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--transports", nargs="+", choices=NAMES, default=NAMES)
    numbers_file.add_option(parser)
    parser.add_argument("--logs", type=Path, default=Path("out/bench_transport"))
    chosen = parser.parse_args(arguments)
    for option in ("megabytes", "rounds"):
        if getattr(chosen, option) < 1:
            parser.error(f"--{option} {getattr(chosen, option)}: choose 1 or more")
    numbers_file.prepare(parser, chosen.json)
    return Options(
        chosen.megabytes, chosen.rounds, tuple(chosen.transports), chosen.json, chosen.logs
    )


def show(event: Event) -> None:
    """Progress, a line a turn."""
    if isinstance(event, Measured):
        speed = event.payload_bytes / event.seconds / 1e9
        print(f"{TITLES[event.transport]}: {speed:.2f} GB/s", file=sys.stderr, flush=True)


def measure(options: Options) -> list[Measured]:
    """Every turn of every transport. Raises ClusterError or launch.LaunchError."""
    program = launch.Program(
        "transport",
        "experiments.transport_node",
        (
            *("--megabytes", str(options.megabytes), "--rounds", str(options.rounds)),
            *("--transports", *options.transports),
        ),
    )
    with Cluster(NODES, rate=None) as cluster:
        return launch.measured(launch.run(cluster, program, options.logs, on_event=show))


def main() -> int:
    """The command; 1 when a transport failed."""
    options = parse(sys.argv[1:])
    try:
        found = summary(measure(options), NODES)
    except (ClusterError, launch.LaunchError) as error:
        print(f"bench_transport: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bench_transport: interrupted; everything it made is removed", file=sys.stderr)
        return 130
    print(text(found))
    numbers_file.write(options.json, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
