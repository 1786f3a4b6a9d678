"""Benches whose systems take turns in several settings: their options, and the loop."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from experiments import launch, numbers_file
from experiments.outcome import Outcome
from experiments.rounds import interleaved
from experiments.setting import Setting
from p3_shaper.cluster import MAX_NODES, ClusterError
from p3_shaper.rates import RateError

ITERATIONS = 12
ROUNDS = 3


class Titled(Protocol):
    """A system of a bench."""

    @property
    def key(self) -> str:
        """Its name on the command line and in JSON."""

    @property
    def title(self) -> str:
        """Its name for people."""


_System = TypeVar("_System", bound=Titled)


@dataclass(frozen=True, slots=True)
class Turns(Generic[_System]):
    """What the user asked for."""

    settings: tuple[Setting, ...]
    systems: tuple[_System, ...]
    nodes: int
    rounds: int
    iterations: int
    json: Path | None
    logs: Path


def options(
    name: str, about: str | None, settings: Sequence[str], systems: Iterable[Titled]
) -> argparse.ArgumentParser:
    """The options that all such benches have; `settings` and all of `systems` are the default."""
    keys = [system.key for system in systems]
    parser = argparse.ArgumentParser(prog=name, description=about)
    parser.add_argument(
        "--settings", nargs="+", default=settings, metavar="NET@RATE", help=" ".join(settings)
    )
    parser.add_argument("--systems", nargs="+", default=keys, choices=keys)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--iterations", type=int, default=ITERATIONS, help="in each round")
    numbers_file.add_option(parser)
    parser.add_argument("--logs", type=Path, default=Path("out") / name)
    return parser


def chosen_turns(
    parser: argparse.ArgumentParser,
    chosen: argparse.Namespace,
    systems: Iterable[_System],
    parse_setting: Callable[[str], Setting],
) -> Turns[_System]:
    """What `options` read, checked; SystemExit with status 2 for what makes no sense."""
    for option, least in (("nodes", 2), ("rounds", 1), ("iterations", 2)):
        if getattr(chosen, option) < least:
            parser.error(f"--{option} {getattr(chosen, option)}: choose {least} or more")
    if chosen.nodes > MAX_NODES:
        parser.error(f"--nodes {chosen.nodes}: a cluster has at most {MAX_NODES}")
    try:
        settings = tuple(map(parse_setting, chosen.settings))
    except (RateError, ValueError) as error:
        parser.error(str(error))
    numbers_file.prepare(parser, chosen.json)
    return Turns(
        settings=settings,
        systems=tuple(system for system in systems if system.key in chosen.systems),
        nodes=chosen.nodes,
        rounds=chosen.rounds,
        iterations=chosen.iterations,
        json=chosen.json,
        logs=chosen.logs,
    )


def take(
    turns: Turns[_System],
    measure: Callable[[Setting, _System, str], Outcome],
    add: Callable[[Setting, _System, Outcome], None],
) -> str | None:
    """Every round, each outcome to `add`; the sentence of the failure that ended it early, if any.

    `measure` gets a title for its progress; it may raise ClusterError or launch.LaunchError.
    """
    pairs = [(setting, system) for setting in turns.settings for system in turns.systems]
    try:
        for number, (setting, system) in interleaved(pairs, turns.rounds):
            title = f"round {number + 1}, {setting}, {system.title}"
            add(setting, system, measure(setting, system, title))
    except (ClusterError, launch.LaunchError) as error:
        return str(error)
    except KeyboardInterrupt:
        return "interrupted"
    return None
