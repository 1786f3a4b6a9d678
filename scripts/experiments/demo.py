"""The main job, end to end: a shaped cluster, agents, real training; P3 beside DDP."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

from experiments import dataset, launch, numbers_file
from experiments.comparison import Numbers, Setting, compare, text
from experiments.figure import draw
from experiments.outcome import Outcome
from experiments.progress import Progress
from experiments.scratch import scratch
from experiments.systems import DEMO, System
from p3_shaper.cluster import MAX_NODES, Cluster, ClusterError
from p3_shaper.rates import RateError, SizeError, parse_rate, parse_size

MODELS = ("small", "medium", "large")
ITERATIONS = 60
QUICK_ITERATIONS = 14
_COMPARABLE_ITERATIONS = 30
"""Fewer are mostly warm-up."""
_LEAST_ITERATIONS = 2
_LEAST_NODES = 2


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asked for."""

    setting: Setting
    iterations: int
    out: Path
    json: Path


def parse(arguments: list[str]) -> Options:
    """Options from the command line; SystemExit with status 2 for what makes no sense."""
    parser = argparse.ArgumentParser(prog="demo", description=__doc__)
    parser.add_argument("--nodes", type=int, default=4, help="nodes, 2 or more (4)")
    parser.add_argument("--rate", default="170mbit", help="of each link, with a unit (170mbit)")
    parser.add_argument("--model", choices=MODELS, default="medium", help="0.4, 1.4, 4.5 million")
    parser.add_argument("--iterations", type=int, help=f"a system ({ITERATIONS})")
    parser.add_argument("--port-buffer", default="256KB", help="of each switch port (256KB)")
    parser.add_argument("--out", type=Path, default=Path("out/demo"), help="a directory (out/demo)")
    numbers_file.add_option(parser, "OUT/demo.json")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ITERATIONS} iterations")
    chosen = parser.parse_args(arguments)
    iterations = chosen.iterations
    if iterations is None:
        iterations = QUICK_ITERATIONS if chosen.quick else ITERATIONS
    if chosen.nodes < _LEAST_NODES:
        parser.error(f"--nodes {chosen.nodes}: there is no communication below {_LEAST_NODES}")
    if chosen.nodes > MAX_NODES:
        parser.error(f"--nodes {chosen.nodes}: a cluster has at most {MAX_NODES}")
    if iterations < _LEAST_ITERATIONS:
        parser.error(f"--iterations {iterations}: choose {_LEAST_ITERATIONS} or more")
    try:
        rate, port_buffer = parse_rate(chosen.rate), parse_size(chosen.port_buffer)
    except (RateError, SizeError) as error:
        parser.error(str(error))
    setting = Setting(chosen.nodes, rate, port_buffer, chosen.model)
    try:
        chosen.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--out {error.filename}: {error.strerror}; choose another")
    numbers = chosen.json or chosen.out / "demo.json"
    numbers_file.prepare(parser, numbers)
    return Options(setting, iterations, chosen.out, numbers)


def train_all(options: Options) -> dict[str, Outcome]:
    """Train once with every system, on one cluster; outcomes by the systems' keys.

    Raises ClusterError or launch.LaunchError; nothing is left running or configured.
    """
    setting = options.setting
    with (
        scratch() as directory,
        Cluster(setting.nodes, setting.rate, setting.port_buffer) as cluster,
    ):
        data = directory / "digits.npz"
        dataset.save(data)
        return {system.key: _train(options, cluster, system, data) for system in DEMO}


def _train(options: Options, cluster: Cluster, system: System, data: Path) -> Outcome:
    program = launch.Program(
        system.key,
        "experiments.train",
        (
            *system.arguments,
            *("--workload", f"digits-{options.setting.model}", "--data", str(data)),
            *("--iterations", str(options.iterations)),
        ),
    )
    told = launch.run(
        cluster,
        program,
        options.out / "logs",
        agent_rate=options.setting.rate if system.agents else None,
        on_event=Progress(system.title, options.iterations),
    )
    return Outcome(tuple(launch.finished(told)))


def write(options: Options, numbers: Numbers, outcomes: dict[str, Outcome]) -> None:
    """The numbers as JSON and the picture as PNG."""
    numbers_file.write(options.json, numbers)
    titled = {system.title: outcomes[system.key] for system in DEMO}
    title = (
        f"{numbers.parameters / 1e6:.2f} M parameters, {numbers.nodes} nodes, "
        f"{numbers.rate} links, {numbers.port_buffer_bytes // 1000} KB ports"
    )
    picture = options.out / "demo.png"
    draw(titled, numbers.bound_s, title, picture)
    print(f"wrote {picture}")


def main() -> int:
    """The command; 0 when every system trained and all computed the same, else 1."""
    options = parse(sys.argv[1:])
    setting = options.setting
    print(
        f"{setting.nodes} nodes, {setting.rate} links, "
        f"{setting.port_buffer} bytes a switch port, model {setting.model}",
        file=sys.stderr,
    )
    try:
        outcomes = train_all(options)
    except (ClusterError, launch.LaunchError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("demo: interrupted; everything it made is removed", file=sys.stderr)
        return 130
    numbers = compare(setting, outcomes)
    print(text(numbers))
    if options.iterations < _COMPARABLE_ITERATIONS:
        print(
            f"\n{options.iterations} iterations are too few to compare speeds: this shows that "
            f"everything works; use {_COMPARABLE_ITERATIONS} or more for numbers"
        )
    write(options, numbers, outcomes)
    if not (numbers.loss_curves_agree and numbers.ranks_identical):
        print("demo: the systems did not compute the same, see above", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
