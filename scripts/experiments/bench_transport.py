"""How fast slices travel between two nodes whose links are not shaped, and what that costs.

Beside P3's engines: iperf3, and gloo's all-reduce of the same bytes; all in turns in one run. Then
what training costs, beside DistributedDataParallel: processor, memory, waits for the GIL.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from experiments import launch, numbers_file, training_costs
from experiments.messages import Event, Measured
from experiments.training_costs import SystemCosts
from experiments.transports import NAMES, TITLES, TransportNumbers, summary, text
from p3_shaper.cluster import Cluster, ClusterError

NODES = 2
ROUNDS = 5
MEGABYTES = 100
KEPT = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**34)}
"""glibc keeps freed memory (mallopt(3)). Otherwise it does or does not by what happens to lie above
it, and faulting gradients in again costs half as much as sending them."""


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
    parser.add_argument(
        "--transports", nargs="*", choices=NAMES, default=NAMES, help="none: training alone"
    )
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


class Numbers(msgspec.Struct, frozen=True):
    """All that is found, by the name of the transport, and of the system that trains."""

    transports: dict[str, TransportNumbers]
    training: dict[str, SystemCosts]


def show(event: Event) -> None:
    """Progress, a line a turn."""
    if isinstance(event, Measured):
        speed = event.payload_bytes / event.seconds / 1e9
        title = {**training_costs.TITLES, **TITLES}[event.transport]
        print(f"{title}: {speed:.2f} GB/s", file=sys.stderr, flush=True)


def measure(options: Options) -> Numbers:
    """Every turn of every transport, then of training. Raises ClusterError or LaunchError."""
    sizes = ("--megabytes", str(options.megabytes), "--rounds", str(options.rounds))
    transport = launch.Program(
        "transport",
        "experiments.transport_node",
        (*sizes, "--transports", *options.transports),
    )
    training = launch.Program("training", "experiments.costs_node", sizes, environment=KEPT)
    transports: dict[str, TransportNumbers] = {}
    with Cluster(NODES, rate=None) as cluster:
        if options.transports:
            told = launch.run(cluster, transport, options.logs, on_event=show)
            transports = summary(launch.measured(told), NODES)
        told = launch.run(cluster, training, options.logs, on_event=show)
    return Numbers(transports, training_costs.costs(told, NODES))


def main() -> int:
    """The command; 1 when a transport failed."""
    options = parse(sys.argv[1:])
    try:
        found = measure(options)
    except (ClusterError, launch.LaunchError) as error:
        print(f"bench_transport: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bench_transport: interrupted; everything it made is removed", file=sys.stderr)
        return 130
    if found.transports:
        print(text(found.transports), end="\n\n")
    print(training_costs.text(found.training))
    numbers_file.write(options.json, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
