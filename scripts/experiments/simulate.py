"""Predicts iteration times of every system, on networks of many sizes and rates.

PROFILE is a file that `scripts/profile` wrote, or one of the paper's models by name. A model of
the network, not a measurement: docs/predict.md says how near it comes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec

from experiments import numbers_file
from experiments.emulation import paper_profiles
from experiments.report import percent, table
from p3.best_cuts import with_best_cuts
from p3.commands.options import NetworkOptions, UsageError, add_network, rate
from p3.cuts import CUTTINGS
from p3.engine import P3Error
from p3.profile import Profile, read_profile
from p3.simulate import BANDS, Prediction, predict, with_best_buckets
from p3.simulation.network import Network
from p3.simulation.pieces import schedule_of
from p3.systems import SYSTEMS
from p3_shaper.console import carried_out
from p3_shaper.rates import Rate

OPTIMISED = "optimised"
"""Bands that the model itself likes best: see `best_cuts`."""
BEST_DDP = "ddp-best"
"""DDP with the bucket size that is best for it."""


class Row(msgspec.Struct, frozen=True):
    """One system on one network; `over_ddp` is DDP's time over its own, `bands` how it cuts them.

    `cuts` is the first layer of every band but band 0.
    """

    nodes: int
    bits_per_second: int
    system: str
    title: str
    iteration_s: float
    samples_per_s: float
    bound_s: float
    busy: float
    over_ddp: float
    bands: str = ""
    cuts: tuple[int, ...] = ()


def rows(profile: Profile, network: Network, link: Rate, names: Sequence[str]) -> Iterator[Row]:
    """Predictions for `names` on one network whose links are of rate `link`."""
    row = _Rows(profile, network, link)
    for name in names:
        told, title = _told(profile, network, name)
        yield row(told, name, title)


def cut_rows(profile: Profile, network: Network, link: Rate, names: Sequence[str]) -> Iterator[Row]:
    """Every way to cut bands, for those of `names` that have bands."""
    row = _Rows(profile, network, link)
    for system in (SYSTEMS[name] for name in names if name != BEST_DDP):
        if not system.uses_bands:
            continue
        for bands, cutting in CUTTINGS.items():
            told = predict(profile, network, replace(system, cutting=cutting))
            yield row(told, system.name, f"{system.title}, {bands}", bands)
        told = with_best_cuts(profile, network, system)
        yield row(told, system.name, f"{system.title}, {OPTIMISED}", OPTIMISED)


class _Rows:
    """Makes rows of one network."""

    def __init__(self, profile: Profile, network: Network, link: Rate) -> None:
        self._profile, self._network, self._link = profile, network, link
        self._ddp = predict(profile, network, SYSTEMS["ddp"])

    def __call__(self, told: Prediction, name: str, title: str, bands: str = "") -> Row:
        return Row(
            self._network.nodes,
            self._link.bits_per_second,
            name,
            title,
            told.iteration_s,
            self._network.nodes * self._profile.samples / told.iteration_s,
            told.bound_s,
            told.busy,
            self._ddp.iteration_s / told.iteration_s,
            bands,
            schedule_of(self._profile, told.system, BANDS).cuts if bands else (),
        )


def _told(profile: Profile, network: Network, name: str) -> tuple[Prediction, str]:
    if name != BEST_DDP:
        return predict(profile, network, SYSTEMS[name]), SYSTEMS[name].title
    best = with_best_buckets(profile, network, SYSTEMS["ddp"])
    return best, f"PyTorch DDP, buckets of {best.system.bucket_bytes >> 20} MiB"


def text(found: Sequence[Row]) -> str:
    """A table, a row a system, network after network."""
    header = ("network", "system", "iteration", "samples/s", "of bound", "busy", "over DDP")
    return table(
        header,
        [
            (
                f"{row.nodes} x {Rate(row.bits_per_second)}",
                row.title,
                f"{row.iteration_s:.4g} s",
                f"{row.samples_per_s:.4g}",
                percent(row.bound_s / row.iteration_s),
                percent(row.busy),
                f"{row.over_ddp:.2f}x",
            )
            for row in found
        ],
    )


def _profile(text: str) -> Profile:
    known = paper_profiles()
    return known[text] if text in known else read_profile(Path(text))


def parser() -> argparse.ArgumentParser:
    """The command line."""
    names = (*SYSTEMS, BEST_DDP)
    made = argparse.ArgumentParser(prog="simulate", description=__doc__)
    made.add_argument(
        "profile", metavar="PROFILE", help=f"a file, or {', '.join(paper_profiles())}"
    )
    made.add_argument("--nodes", type=int, nargs="+", required=True)
    made.add_argument("--rate", type=rate, nargs="+", required=True, help="a link's, like 10gbit")
    made.add_argument("--systems", nargs="+", choices=names, default=names, metavar="SYSTEM")
    made.add_argument(
        "--cuts", action="store_true", help="compare ways to cut bands, for systems with bands"
    )
    add_network(made)
    numbers_file.add_option(made)
    return made


def _run(parsed: argparse.Namespace) -> int:
    try:
        profile = _profile(parsed.profile)
        options = NetworkOptions(parsed)
        predicted = cut_rows if parsed.cuts else rows
        found = [
            row
            for link in parsed.rate
            for nodes in parsed.nodes
            for row in predicted(profile, options.network(nodes, link), link, parsed.systems)
        ]
    except (P3Error, UsageError) as error:
        print(f"simulate: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    print(text(found))
    numbers_file.write(parsed.json, found)
    return 0


def main() -> int:
    """The command."""
    made = parser()
    parsed = made.parse_args()
    numbers_file.prepare(made, parsed.json)
    return carried_out("simulate", partial(_run, parsed))


if __name__ == "__main__":
    sys.exit(main())
