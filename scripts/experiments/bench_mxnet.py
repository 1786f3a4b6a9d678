"""MXNet's own stores beside dist_p3, on shaped links, in turns.

Each layer of an emulated network waits for the time that a device would take; parameters,
gradients and bytes are real. MXNet's stores run a server beside each worker, as the paper's do.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec

from experiments import launch, numbers_file, turns
from experiments.launch_mxnet import INTERPRETER, OVERLAP
from experiments.outcome import Outcome
from experiments.progress import Progress
from experiments.report import percent, seconds, table, times
from experiments.rounds import spread
from experiments.setting import Setting, parse_setting
from experiments.turns import Turns
from p3.bounds import communication_s, iteration_bound_s
from p3_shaper.cluster import PORT_BUFFER, Cluster
from p3_shaper.rates import parse_rate

SETTINGS = ("vgg19@700mbit", "resnet50@400mbit", "resnet18@250mbit")
"""Communication takes as long as computing. resnet18 is a real network, and computes."""
REAL = "resnet18"
BATCH = 32
ROOT_PORT = "9191"
ALIKE = {
    **OVERLAP,
    # A layer is split over the servers from a million elements on: a twentieth, as the networks.
    "MXNET_KVSTORE_BIGARRAY_BOUND": "50000",
}


@dataclass(frozen=True, slots=True)
class System:
    """A store; `key` names it in JSON; `van` chooses the network layer of MXNet's dist_sync."""

    key: str
    title: str
    store: str
    van: Mapping[str, str] = field(default_factory=dict)


ALONE = System("alone", "computing alone", "local")
SYSTEMS = (
    ALONE,
    System("dist_sync", "MXNet's dist_sync", "dist_sync"),
    System(
        "mxnet_p3",
        "MXNet's own P3",
        "dist_sync",
        {"DMLC_PS_VAN_TYPE": "p3", "DMLC_PS_WATER_MARK": "1"},
    ),
    System("dist_p3", "dist_p3", "dist_p3"),
)


class StoreRounds(msgspec.Struct, frozen=True):
    """One store in one setting; `dist_sync_over` is dist_sync's time over this one's."""

    title: str
    iteration_s: float
    spread: float
    share_of_bound: float | None
    dist_sync_over: float | None
    rounds_s: list[float]
    cpu_s: float
    megabytes_sent: float


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asked for."""

    turns: Turns[System]
    batch: int
    timelines: Path | None


def parse(arguments: Sequence[str]) -> Options:
    """Options from the command line; SystemExit with status 2 for what makes no sense."""
    parser = turns.options("bench_mxnet", __doc__, SETTINGS, SYSTEMS)
    parser.add_argument(
        "--batch", type=int, default=BATCH, help=f"pictures a node of {REAL} ({BATCH})"
    )
    parser.add_argument(
        "--timelines", type=Path, help="a folder for rank 0's of the last round, by setting, store"
    )
    chosen = parser.parse_args(arguments)
    if chosen.batch < 1:
        parser.error(f"--batch {chosen.batch}: choose 1 or more")
    chosen_turns = turns.chosen_turns(parser, chosen, SYSTEMS, _setting)
    return Options(chosen_turns, chosen.batch, chosen.timelines)


def _setting(text: str) -> Setting:
    workload, at, rate = text.partition("@")
    return Setting(REAL, parse_rate(rate)) if at and workload == REAL else parse_setting(text)


def measure(options: Options, setting: Setting, system: System, title: str) -> Outcome:
    """Train once, on a fresh cluster. Raises ClusterError or launch.LaunchError."""
    with Cluster(options.turns.nodes, setting.rate, PORT_BUFFER) as cluster:
        folder = options.timelines
        environment = {**ALIKE, **_parameter_servers(cluster, system)}
        program = launch.Program(
            system.key,
            "experiments.mxnet_train",
            (
                *("--store", system.store, "--workload", setting.workload),
                *("--batch", str(options.batch)),
                *("--iterations", str(options.turns.iterations)),
                *(("--timeline", _timeline(folder, setting, system)) if folder else ()),
            ),
            interpreter=INTERPRETER,
            environment=environment,
        )
        told = launch.run(
            cluster,
            program,
            options.turns.logs / str(setting),
            agent_rate=setting.rate if system.store == "dist_p3" else None,
            on_event=Progress(title, options.turns.iterations),
        )
        return Outcome(tuple(launch.finished(told)))


def _timeline(folder: Path, setting: Setting, system: System) -> str:
    return str((folder / f"{setting}-{system.key}.json").absolute())


def _parameter_servers(cluster: Cluster, system: System) -> dict[str, str]:
    """Start MXNet's scheduler and servers, which end with the cluster; a worker's environment."""
    if system.store != "dist_sync":
        return {}
    common = {
        **system.van,
        "DMLC_PS_ROOT_URI": cluster.nodes[0].address,
        "DMLC_PS_ROOT_PORT": ROOT_PORT,
        "DMLC_NUM_WORKER": str(len(cluster.nodes)),
        "DMLC_NUM_SERVER": str(len(cluster.nodes)),
        "DMLC_INTERFACE": cluster.nodes[0].device,
    }
    roles = [("scheduler", cluster.nodes[0]), *(("server", node) for node in cluster.nodes)]
    for role, node in roles:
        node.popen(
            [str(INTERPRETER), "-W", "ignore", "-c", "import mxnet"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **ALIKE, **common, "DMLC_ROLE": role, "OMP_NUM_THREADS": "1"},
        )
    return {**common, "DMLC_ROLE": "worker"}


Collected = dict[str, dict[str, list[Outcome]]]
"""Outcomes of every round so far, by setting and system."""


def summary(options: Options, collected: Collected) -> dict[str, dict[str, StoreRounds]]:
    """The rounds so far as numbers, by setting and system."""
    return {
        str(setting): _stores(
            _bound_s(options, setting, collected[str(setting)]), collected[str(setting)]
        )
        for setting in options.turns.settings
        if collected[str(setting)]
    }


def _bound_s(
    options: Options, setting: Setting, found: Mapping[str, Sequence[Outcome]]
) -> float | None:
    """For a real network, what computing takes on processors that nodes share: None unmeasured."""
    if setting.workload != REAL:
        return setting.bound_s(options.turns.nodes)
    if ALONE.key not in found:
        return None
    compute_s = statistics.median(outcome.iteration_s for outcome in found[ALONE.key])
    payload_bytes = 4 * found[ALONE.key][0].ranks[0].parameters
    nodes, rate = options.turns.nodes, setting.rate.bits_per_second
    return iteration_bound_s(compute_s, communication_s(payload_bytes, nodes, rate))


def _stores(
    bound_s: float | None, found: Mapping[str, Sequence[Outcome]]
) -> dict[str, StoreRounds]:
    medians = {key: statistics.median(o.iteration_s for o in found[key]) for key in found}
    return {
        system.key: StoreRounds(
            title=system.title,
            iteration_s=medians[system.key],
            spread=spread([outcome.iteration_s for outcome in found[system.key]]),
            share_of_bound=None if bound_s is None else bound_s / medians[system.key],
            dist_sync_over=(
                medians["dist_sync"] / medians[system.key] if "dist_sync" in medians else None
            ),
            rounds_s=[outcome.iteration_s for outcome in found[system.key]],
            cpu_s=statistics.median(outcome.cpu_s for outcome in found[system.key]),
            megabytes_sent=found[system.key][-1].megabytes_sent,
        )
        for system in SYSTEMS
        if system.key in found
    }


def text(numbers: Mapping[str, Mapping[str, StoreRounds]]) -> str:
    """A table with a row for each setting and store."""
    header = ("setting", "store", "iteration", "spread", "of bound", "against dist_sync", "MB sent")
    rows = [
        (
            setting,
            store.title,
            seconds(store.iteration_s),
            percent(store.spread),
            "-" if store.share_of_bound is None else percent(store.share_of_bound),
            "-" if store.dist_sync_over is None else times(store.dist_sync_over),
            f"{store.megabytes_sent:.0f}",
        )
        for setting, stores in numbers.items()
        for store in stores.values()
    ]
    return table(header, rows)


def main() -> int:
    """The command; 1 when a system failed, after what was measured until then."""
    options = parse(sys.argv[1:])
    collected: Collected = {str(setting): {} for setting in options.turns.settings}
    failure = turns.take(
        options.turns,
        partial(measure, options),
        lambda setting, system, outcome: (
            collected[str(setting)].setdefault(system.key, []).append(outcome)
        ),
    )
    numbers = summary(options, collected)
    print(text(numbers))
    numbers_file.write(options.turns.json, numbers)
    if failure is not None:
        print(f"bench_mxnet: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
