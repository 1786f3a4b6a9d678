"""The transports that bench_transport compares, and what it found. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec

from experiments.messages import Measured
from experiments.report import percent, table
from experiments.rounds import spread

TITLES = {
    "iperf3": "iperf3, both ways at once",
    "gloo": "gloo all-reduce, one piece",
    "groups": "P3, engine groups",
    "ps": "P3, engine ps",
}
NAMES = tuple(TITLES)
IPERF3_S = 3


class TransportNumbers(msgspec.Struct, frozen=True):
    """One transport: medians over rounds.

    `gigabytes_per_s` is payload that each node sends (and receives) a second; `cpu_s_per_gb`
    processor seconds, user and kernel, for each gigabyte (10^9) that a node sends.
    """

    title: str
    gigabytes_per_s: float
    spread: float
    cpu_s_per_gb: float
    rounds: list[Measured]


def summary(measured: Sequence[Measured], nodes: int) -> dict[str, TransportNumbers]:
    """Numbers by the transport's name, in the order of `NAMES`."""
    found: dict[str, TransportNumbers] = {}
    for name, title in TITLES.items():
        rounds = [one for one in measured if one.transport == name]
        if not rounds:
            continue
        speeds = [one.payload_bytes / one.seconds / 1e9 for one in rounds]
        costs = [one.cpu_s / (nodes * one.payload_bytes / 1e9) for one in rounds]
        found[name] = TransportNumbers(
            title=title,
            gigabytes_per_s=statistics.median(speeds),
            spread=spread(speeds),
            cpu_s_per_gb=statistics.median(costs),
            rounds=rounds,
        )
    return found


def text(found: dict[str, TransportNumbers]) -> str:
    """A table with a row for each transport."""
    header = ("transport", "GB/s a node", "spread", "CPU s a GB")
    rows = [
        (one.title, f"{one.gigabytes_per_s:.2f}", percent(one.spread), f"{one.cpu_s_per_gb:.2f}")
        for one in found.values()
    ]
    return table(header, rows)
