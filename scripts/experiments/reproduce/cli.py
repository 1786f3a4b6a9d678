"""`scripts/reproduce`: the paper's figures on this machine, beside today's alternatives."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from experiments.launch import LaunchError
from experiments.messages import Event, Iterated
from experiments.reproduce import accuracy, outputs, paper, plans
from experiments.reproduce.measure import Measuring, Progress, Turn, turns
from experiments.reproduce.plans import SLOW, Choice
from experiments.reproduce.points import Measurement, Store, StoreError
from experiments.systems import DEEP_PORT, SHALLOW_PORT
from p3.systems import SYSTEMS
from p3_shaper.cluster import ClusterError

_MEASUREMENTS = "measurements.jsonl"
_INTERRUPTED = "interrupted"
ACCURACY = "accuracy"
LESSON = 150
"""Iterations of `accuracy`: 30 epochs."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asked for; no figures stand for `accuracy`."""

    figures: tuple[str, ...]
    choice: Choice
    quick: bool
    out: Path


def parse(arguments: Sequence[str]) -> Options:
    """Options from the command line; SystemExit with status 2 for what makes no sense."""
    parser = argparse.ArgumentParser(prog="reproduce", description=__doc__)
    parser.add_argument("figure", choices=(*plans.FIGURES, "all", ACCURACY))
    parser.add_argument("--models", nargs="+", choices=paper.MODELS, metavar="MODEL")
    parser.add_argument("--rates", nargs="+", type=float, metavar="GBIT", help="figure 7's")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, metavar="SYSTEM")
    parser.add_argument("--nodes", nargs="+", type=int, help="figure 10's")
    parser.add_argument("--slices", nargs="+", type=int, metavar="NUMEL", help="figure 12's")
    parser.add_argument(
        "--port-buffers", nargs="+", type=int, metavar="BYTES", help=f"{SHALLOW_PORT} {DEEP_PORT}"
    )
    parser.add_argument("--scale", type=int, help="divides sizes, slices and rates (10; VGG-19 20)")
    parser.add_argument("--slow", type=float, help=f"slow motion: times are multiplied ({SLOW:g})")
    parser.add_argument("--least-slice", type=int, help="elements of an emulated slice, at least")
    parser.add_argument("--iterations", type=int, help="of each repeat")
    parser.add_argument("--repeat", type=int, help="interleaved repeats of each point (3)")
    parser.add_argument("--out", type=Path, default=Path("out/reproduce"))
    parser.add_argument("--quick", action="store_true", help="fewer points and systems")
    return _options(parser, parser.parse_args(arguments))


def _options(parser: argparse.ArgumentParser, chosen: argparse.Namespace) -> Options:
    choice = plans.QUICK if chosen.quick else plans.EVERYTHING
    asked = {
        "models": _tuple(chosen.models),
        "rates": _tuple(chosen.rates),
        "systems": _tuple(chosen.systems),
        "nodes": _tuple(chosen.nodes),
        "slices": _tuple(chosen.slices),
        "buffers": _tuple(chosen.port_buffers),
        "scale": chosen.scale,
        "slow": chosen.slow,
        "least_slice": chosen.least_slice,
        "iterations": chosen.iterations,
        "repeats": chosen.repeat,
    }
    given = {name: value for name, value in asked.items() if value is not None}
    for name, value in given.items():
        values = value if isinstance(value, tuple) else (value,)
        if any(not isinstance(one, str) and one <= 0 for one in values):
            parser.error(f"--{name.replace('_', '-')} {value}: choose more than 0")
    if choice.iterations < 3 or given.get("iterations", 3) < 3:
        parser.error("--iterations: choose 3 or more, for there is a first and a last one")
    try:
        chosen.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--out {chosen.out}: {error.strerror}; choose another folder")
    if chosen.figure == ACCURACY:
        figures: tuple[str, ...] = ()
    else:
        every = plans.QUICK_FIGURES if chosen.quick else tuple(plans.FIGURES)
        figures = every if chosen.figure == "all" else (chosen.figure,)
    return Options(figures, replace(choice, **given), chosen.quick, chosen.out)


def _tuple(values: list[float] | list[int] | list[str] | None) -> tuple[object, ...] | None:
    return None if values is None else tuple(values)


class Shown(Progress):
    """One line a turn, in place on a terminal, with the time that is left."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0
        self._began = time.monotonic()
        self._turn: Turn | None = None
        self._in_place = sys.stderr.isatty()

    def begins(self, turn: Turn) -> None:
        """A turn begins; those before it are done."""
        if self._turn is not None:
            self._done += 1
        self._turn = turn
        self._show("")

    def on_event(self, event: Event) -> None:
        """Iterations are shown on a terminal."""
        if self._in_place and isinstance(event, Iterated):
            self._show(f" iteration {event.iteration + 1}")

    def fails(self, turn: Turn, reason: str) -> None:
        """The reason stays on the screen."""
        self._turn = None
        print(f"\n{turn.point.title}: {reason}; trying again on fresh nodes", file=sys.stderr)

    def _show(self, more: str) -> None:
        assert self._turn is not None
        point = self._turn.point
        passed = time.monotonic() - self._began
        left = ""
        if self._done:
            left = f", {passed / self._done * (self._total - self._done) / 60:.0f} min left"
        bar = "#" * round(20 * self._done / self._total)
        text = (
            f"[{bar:<20}] {self._done}/{self._total}{left}: {paper.TITLES[point.model]}, "
            f"{point.nodes} nodes, {point.gbit:g} Gbit/s, {point.title}{more}"
        )
        start, end = ("\r\033[K", "") if self._in_place else ("", "\n")
        print(start + text, end=end, file=sys.stderr, flush=True)


def main() -> int:
    """The command; 1 when something failed, after what was measured until then is written."""
    options = parse(sys.argv[1:])
    try:
        failure = _figures(options) if options.figures else _accuracy(options)
    except (ClusterError, LaunchError, StoreError) as error:
        failure = str(error)
    except KeyboardInterrupt:
        failure = _INTERRUPTED
    if failure:
        print(f"\nreproduce: {failure}; the same command goes on from here", file=sys.stderr)
    return 1 if failure else 0


def _figures(options: Options) -> str:
    """The sentence of what ended it early; empty if nothing did."""
    store = Store(options.out / _MEASUREMENTS, Measurement)
    choice, quick = options.choice, options.quick
    figures = {name: plans.FIGURES[name](choice, quick=quick) for name in options.figures}
    points = [point for figure in figures.values() for point in figure]
    blocks = turns(points, choice.repeats, store.read())
    progress = Shown(sum(map(len, blocks)))
    failure = _measure(Measuring(store, options.out / "logs", progress), blocks)
    for path in outputs.write(options.out, figures, store.read()):
        print(path)
    return failure


def _measure(measuring: Measuring, blocks: Sequence[Sequence[Turn]]) -> str:
    """As `_figures`, so that what was measured is written in any case."""
    try:
        measuring.run(blocks)
    except (ClusterError, LaunchError) as error:
        return str(error)
    except KeyboardInterrupt:
        return _INTERRUPTED
    return ""


def _accuracy(options: Options) -> str:
    given = options.choice.iterations
    own = (plans.EVERYTHING.iterations, plans.QUICK.iterations)
    iterations = LESSON if given in own else given
    for path in accuracy.run(options.out, iterations, options.choice.systems):
        print(path)
    return ""
