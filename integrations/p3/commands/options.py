"""Options that describe a network, alike for all that predict on one."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from functools import partial

from p3.bounds import HEADER_OVERHEAD
from p3.simulation.network import Network
from p3_shaper.rates import Rate, RateError, SizeError, parse_rate, parse_size


class UsageError(ValueError):
    """The arguments make no sense together; the message says why."""


def rate(text: str) -> Rate:
    """A rate for argparse."""
    try:
        return parse_rate(text)
    except RateError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except SizeError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _number(text: str, least: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text}: a number of {least:g} or more")
    return value


def add_network(parser: argparse.ArgumentParser) -> None:
    """All but nodes and rate."""
    ratio = partial(_number, least=1.0)
    some = partial(_number, least=0.0)
    parser.add_argument(
        "--goodput",
        type=rate,
        help="payload that a link was measured to carry (default: what headers leave of the rate)",
    )
    parser.add_argument(
        "--port-buffer",
        type=_size,
        default=256_000,
        help="what a switch port holds, like 4MB (default 256KB)",
    )
    parser.add_argument(
        "--latency",
        type=some,
        default=0.2,
        help="milliseconds a message takes, software included (default 0.2)",
    )
    parser.add_argument("--rack", type=int, default=0, help="nodes in a rack (default: one rack)")
    parser.add_argument(
        "--oversubscription",
        type=ratio,
        default=1.0,
        help="a rack's links over its uplinks (default 1)",
    )
    parser.add_argument(
        "--straggler",
        type=ratio,
        default=1.0,
        help="the slowest node's computing time over the others' (default 1)",
    )


@dataclass(frozen=True, slots=True)
class NetworkOptions:
    """What `add_network` added, parsed."""

    parsed: argparse.Namespace

    def network(self, nodes: int, link: Rate) -> Network:
        """The network of `nodes` nodes on links of rate `link`. UsageError when it cannot be."""
        goodput: Rate | None = self.parsed.goodput
        bits = link.bits_per_second
        if goodput is not None:
            if goodput.bits_per_second > bits:
                raise UsageError(f"--goodput {goodput} is more than the link's rate {link}")
            bits = round(goodput.bits_per_second * HEADER_OVERHEAD)
        try:
            return Network(
                nodes,
                bits,
                latency_s=self.parsed.latency / 1000,
                port_buffer=self.parsed.port_buffer,
                rack=self.parsed.rack,
                oversubscription=self.parsed.oversubscription,
                straggler=self.parsed.straggler,
            )
        except ValueError as error:
            raise UsageError(str(error)) from error
