"""Emulated VGG-19 and ResNet-50 on a shaped cluster: P3's engines beside DDP, in turns.

Each layer waits for the time that a device would take, so that nodes do not contend for the
processors; parameters, gradients and bytes are real, 1/20 and 1/10 of the networks'.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from experiments import launch, numbers_file, turns
from experiments.emulated_report import Collected, text
from experiments.outcome import Outcome
from experiments.progress import Progress
from experiments.setting import SETTINGS, Setting, parse_setting
from experiments.systems import EMULATED, SHALLOW_PORT, System
from experiments.turns import Turns
from p3_shaper.cluster import Cluster


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asked for."""

    turns: Turns[System]
    slice_numel: int | None


def parse(arguments: Sequence[str]) -> Options:
    """Options from the command line; SystemExit with status 2 for what makes no sense."""
    parser = turns.options("bench_emulated", __doc__, SETTINGS, EMULATED)
    parser.add_argument("--slice-numel", type=int, help="P3's (the engine's own)")
    chosen = parser.parse_args(arguments)
    return Options(turns.chosen_turns(parser, chosen, EMULATED, parse_setting), chosen.slice_numel)


def measure(options: Options, setting: Setting, system: System, title: str) -> Outcome:
    """Train once, on a fresh cluster. Raises ClusterError or launch.LaunchError."""
    port_buffer = SHALLOW_PORT if system.port_buffer is None else system.port_buffer
    program = launch.Program(
        system.key,
        "experiments.train",
        (
            *system.arguments,
            *("--workload", setting.workload, "--iterations", str(options.turns.iterations)),
            *("--port-buffer", str(port_buffer)),
            *(() if options.slice_numel is None else ("--slice-numel", str(options.slice_numel))),
        ),
    )
    with Cluster(options.turns.nodes, setting.rate, port_buffer) as cluster:
        told = launch.run(
            cluster,
            program,
            options.turns.logs / str(setting),
            agent_rate=setting.rate if system.agents else None,
            on_event=Progress(title, options.turns.iterations),
        )
    return Outcome(tuple(launch.finished(told)))


def main() -> int:
    """The command; 1 when a system failed, after what was measured until then."""
    options = parse(sys.argv[1:])
    collected = {s: Collected(s, options.turns.nodes) for s in options.turns.settings}
    failure = turns.take(
        options.turns,
        partial(measure, options),
        lambda setting, system, outcome: collected[setting].add(system.key, outcome),
    )
    summaries = [found.summary() for found in collected.values() if found.outcomes]
    print(text(summaries))
    numbers_file.write(options.turns.json, summaries)
    if failure is not None:
        print(f"bench_emulated: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
