"""Emulated VGG-19 and ResNet-50 on a shaped cluster: P3's engines beside DDP, in turns.

Each layer waits for the time that a device would take, so that nodes do not contend for the
processors; parameters, gradients and bytes are real, 1/20 and 1/10 of the networks'.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments import launch, numbers_file
from experiments.emulated_report import Collected, text
from experiments.outcome import Outcome
from experiments.progress import Progress
from experiments.rounds import interleaved
from experiments.setting import SETTINGS, Setting, parse_setting
from experiments.systems import EMULATED, SHALLOW_PORT, System
from p3_shaper.cluster import MAX_NODES, Cluster, ClusterError
from p3_shaper.rates import RateError

ITERATIONS = 12
ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asked for."""

    settings: tuple[Setting, ...]
    systems: tuple[System, ...]
    nodes: int
    rounds: int
    iterations: int
    slice_numel: int | None
    json: Path | None
    logs: Path


def parse(arguments: Sequence[str]) -> Options:
    """Options from the command line; SystemExit with status 2 for what makes no sense."""
    keys = [system.key for system in EMULATED]
    parser = argparse.ArgumentParser(prog="bench_emulated", description=__doc__)
    parser.add_argument(
        "--settings", nargs="+", default=SETTINGS, metavar="NET@RATE", help=" ".join(SETTINGS)
    )
    parser.add_argument("--systems", nargs="+", default=keys, choices=keys)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--iterations", type=int, default=ITERATIONS, help="in each round")
    parser.add_argument("--slice-numel", type=int, help="P3's (the engine's own)")
    numbers_file.add_option(parser)
    parser.add_argument("--logs", type=Path, default=Path("out/bench_emulated"))
    chosen = parser.parse_args(arguments)
    if chosen.nodes > MAX_NODES:
        parser.error(f"--nodes {chosen.nodes}: a cluster has at most {MAX_NODES}")
    for option in ("nodes", "rounds", "iterations"):
        least = 1 if option == "rounds" else 2
        if getattr(chosen, option) < least:
            parser.error(f"--{option} {getattr(chosen, option)}: choose {least} or more")
    try:
        settings = tuple(map(parse_setting, chosen.settings))
    except (RateError, ValueError) as error:
        parser.error(str(error))
    numbers_file.prepare(parser, chosen.json)
    return Options(
        settings=settings,
        systems=tuple(system for system in EMULATED if system.key in chosen.systems),
        nodes=chosen.nodes,
        rounds=chosen.rounds,
        iterations=chosen.iterations,
        slice_numel=chosen.slice_numel,
        json=chosen.json,
        logs=chosen.logs,
    )


def measure(options: Options, setting: Setting, system: System, title: str) -> Outcome:
    """Train once, on a fresh cluster. Raises ClusterError or launch.LaunchError."""
    port_buffer = SHALLOW_PORT if system.port_buffer is None else system.port_buffer
    program = launch.Program(
        system.key,
        "experiments.train",
        (
            *system.arguments,
            *("--workload", setting.workload, "--iterations", str(options.iterations)),
            *("--port-buffer", str(port_buffer)),
            *(() if options.slice_numel is None else ("--slice-numel", str(options.slice_numel))),
        ),
    )
    with Cluster(options.nodes, setting.rate, port_buffer) as cluster:
        told = launch.run(
            cluster,
            program,
            options.logs / str(setting),
            agent_rate=setting.rate if system.agents else None,
            on_event=Progress(title, options.iterations),
        )
    return Outcome(tuple(launch.finished(told)))


def measure_all(options: Options, collected: Sequence[Collected]) -> str | None:
    """Every round, into `collected`; the sentence of the failure that ended it early, if any."""
    turns = [(found, system) for found in collected for system in options.systems]
    try:
        for number, (found, system) in interleaved(turns, options.rounds):
            title = f"round {number + 1}, {found.setting}, {system.title}"
            found.add(system.key, measure(options, found.setting, system, title))
    except (ClusterError, launch.LaunchError) as error:
        return str(error)
    except KeyboardInterrupt:
        return "interrupted"
    return None


def main() -> int:
    """The command; 1 when a system failed, after what was measured until then."""
    options = parse(sys.argv[1:])
    collected = [Collected(setting, options.nodes) for setting in options.settings]
    failure = measure_all(options, collected)
    summaries = [found.summary() for found in collected if found.outcomes]
    print(text(summaries))
    numbers_file.write(options.json, summaries)
    if failure is not None:
        print(f"bench_emulated: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
