"""How near the agent's htb tree comes to the rate asked for, and what leaks to a lower band.

Two nodes joined by a veth pair, iperf3 between them, rates as the kernel counts them (with headers,
as a link would). A leak is what the lowest band gets while the most urgent one has a backlog: when
that one runs empty, for want of processor, the link is rightly the lower one's (how the two are
told apart: `backlogged`). Beside the shaped rates: what the same machine sends unshaped.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import msgspec

from experiments import numbers_file
from experiments.backlogged import Shares
from experiments.report import table
from experiments.shaper_flows import under_a_tree, unshaped
from p3_shaper.cluster import ClusterError
from p3_shaper.errors import TcError
from p3_shaper.rates import Rate, RateError, parse_rate

RATES = ("100mbit", "1gbit", "5gbit", "10gbit")
ROUNDS = 3
SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asked for."""

    rates: tuple[Rate, ...]
    rounds: int
    seconds: float
    json: Path | None


class Row(msgspec.Struct, frozen=True):
    """One rate: medians over the rounds, in bits a second and as parts of 1.

    `achieved` is one flow alone, all the time. The others are of an urgent flow beside one of the
    lowest band: `rate` of both and `leak`, the lower one's part, while the urgent one had a
    backlog, `backlogged` of the time; `lower` is that part over all the time. `unshaped` is the
    machine's own speed.
    """

    asked: int
    achieved: float
    rate: float
    leak: float
    backlogged: float
    lower: float
    unshaped: float


def parse(arguments: Sequence[str]) -> Options:
    """Options from the command line; SystemExit with status 2 for what makes no sense."""
    parser = argparse.ArgumentParser(prog="bench_shaper", description=__doc__)
    parser.add_argument("--rates", nargs="+", default=RATES, help="like 100mbit 10gbit")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each measurement")
    numbers_file.add_option(parser)
    chosen = parser.parse_args(arguments)
    if chosen.rounds < 1:
        parser.error(f"--rounds {chosen.rounds}: choose 1 or more")
    if not 0.1 <= chosen.seconds <= 60:
        parser.error(f"--seconds {chosen.seconds}: choose 0.1 to 60")
    try:
        rates = tuple(parse_rate(text) for text in chosen.rates)
    except RateError as error:
        parser.error(str(error))
    numbers_file.prepare(parser, chosen.json)
    return Options(rates, chosen.rounds, chosen.seconds, chosen.json)


async def measure(options: Options) -> list[Row]:
    """Every rate, the rounds interleaved. Raises ClusterError or TcError."""
    plain: list[float] = []
    single: dict[Rate, list[float]] = {rate: [] for rate in options.rates}
    both: dict[Rate, list[Shares]] = {rate: [] for rate in options.rates}
    for number in range(options.rounds):
        plain.append(await unshaped(options.seconds))
        for rate in options.rates:
            print(f"round {number + 1}, {rate}", file=sys.stderr, flush=True)
            async with under_a_tree(rate, with_a_lower=False) as flows:
                single[rate].append((await flows.shares(options.seconds)).total)
            async with under_a_tree(rate, with_a_lower=True) as flows:
                both[rate].append(await flows.shares(options.seconds))
    return [
        Row(
            asked=rate.bits_per_second,
            achieved=median(single[rate]),
            rate=median(item.rate for item in both[rate]),
            leak=median(item.leak for item in both[rate]),
            backlogged=median(item.backlogged for item in both[rate]),
            lower=median(item.lower for item in both[rate]),
            unshaped=median(plain),
        )
        for rate in options.rates
    ]


def text(rows: Sequence[Row]) -> str:
    """The table, for people."""
    header = ("asked", "achieved", "while backlogged", "leak", "backlogged", "lower in all")
    cells = [
        (
            str(Rate(row.asked)),
            f"{row.achieved / row.asked:.1%}",
            f"{row.rate / row.asked:.1%}",
            f"{row.leak:.2%}",
            f"{row.backlogged:.0%}",
            f"{row.lower:.1%}",
        )
        for row in rows
    ]
    speed = rows[0].unshaped / 1e9
    return f"{table(header, cells)}\nunshaped, the machine sends {speed:.1f} Gbit/s"


def main() -> int:
    """The command; 1 when something failed."""
    options = parse(sys.argv[1:])
    try:
        rows = asyncio.run(measure(options))
    except (ClusterError, TcError) as error:
        print(f"bench_shaper: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bench_shaper: interrupted; everything it made is removed", file=sys.stderr)
        return 130
    print(text(rows))
    numbers_file.write(options.json, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
