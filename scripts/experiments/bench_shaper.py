"""How near the agent's htb tree comes to the rate asked for, and what leaks to a lower band.

Two nodes joined by a veth pair, iperf3 between them, rates as the kernel counts them (with headers,
as a link would). Beside the shaped rates: what the same machine sends unshaped.
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
from experiments.shaper_flows import Shares, alone, beside_a_lower_band, unshaped
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

    `achieved` is one flow alone. `top` is the urgent flow beside one of the lowest band, `leak`
    what that one takes of both together, `dry` how often the urgent one had nothing waiting (see
    `Shares`). `unshaped` is the machine's own speed.
    """

    asked: int
    achieved: float
    top: float
    leak: float
    dry: float
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
            single[rate].append(await alone(rate, options.seconds))
            both[rate].append(await beside_a_lower_band(rate, options.seconds))
    return [
        Row(
            asked=rate.bits_per_second,
            achieved=median(single[rate]),
            top=median(item.top for item in both[rate]),
            leak=median(item.leak for item in both[rate]),
            dry=median(item.dry for item in both[rate]),
            unshaped=median(plain),
        )
        for rate in options.rates
    ]


def text(rows: Sequence[Row]) -> str:
    """The table, for people."""
    lines = [
        "asked      achieved  of asked  top band   leak    dry  of unshaped",
        *map(_line, rows),
    ]
    if rows:
        lines.append(f"unshaped, the machine sends {rows[0].unshaped / 1e6:.0f}M")
    return "\n".join(lines)


def _line(row: Row) -> str:
    return (
        f"{Rate(row.asked)!s:<9}  {row.achieved / 1e6:>7.0f}M  {row.achieved / row.asked:>8.1%}  "
        f"{row.top / 1e6:>7.0f}M  {row.leak:>5.1%}  {row.dry:>5.1%}  "
        f"{row.achieved / row.unshaped:>11.1%}"
    )


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
