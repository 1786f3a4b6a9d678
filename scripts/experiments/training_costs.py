"""What training costs by system: processor, memory, waits for the GIL. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec

from experiments.messages import Event, Held, Measured, Waited
from experiments.report import table, times

ALONE = "alone"
TITLES = {
    ALONE: "no communication",
    "ddp": "PyTorch DDP, gloo",
    "groups": "P3, engine groups",
    "ps": "P3, engine ps",
}
SYSTEMS = tuple(TITLES)


class SystemCosts(msgspec.Struct, frozen=True):
    """One system: medians over rounds, but for the longest wait.

    `cpu_s_per_gb` are processor seconds, user and kernel, beyond those of training without
    communication, for each gigabyte (10^9) of payload that a node sends. `memory_share` is what it
    held at most beyond parameters and gradients, as a part of these together.
    `longest_gil_wait_s` is of rank 0's training thread. What compares with DDP, and memory, is
    None for training without communication.
    """

    title: str
    iteration_s: float
    cpu_s_per_gb: float
    cpu_over_ddp: float | None
    memory_share: float | None
    memory_over_ddp: float | None
    longest_gil_wait_s: float


def costs(told: Sequence[Event], nodes: int) -> dict[str, SystemCosts]:
    """Numbers by the system's name, in the order of `SYSTEMS`."""
    rounds: dict[str, list[Measured]] = {name: [] for name in SYSTEMS}
    held: dict[str, Held] = {}
    waited = dict.fromkeys(SYSTEMS, 0.0)
    for event in told:
        if isinstance(event, Measured):
            rounds[event.transport].append(event)
        elif isinstance(event, Held):
            held[event.system] = event
        elif isinstance(event, Waited):
            waited[event.system] = max(waited[event.system], event.longest_s)
    alone_s = statistics.median(one.cpu_s for one in rounds[ALONE])
    cpu = {
        name: statistics.median(
            (one.cpu_s - alone_s) / (nodes * one.payload_bytes / 1e9) for one in measured
        )
        for name, measured in rounds.items()
    }
    memory = {name: one.beside_bytes / one.model_bytes for name, one in held.items()}
    return {
        name: SystemCosts(
            title=title,
            iteration_s=statistics.median(one.seconds for one in rounds[name]),
            cpu_s_per_gb=cpu[name],
            cpu_over_ddp=None if name == ALONE else cpu[name] / cpu["ddp"],
            memory_share=memory.get(name),
            memory_over_ddp=None if name == ALONE else memory[name] / memory["ddp"],
            longest_gil_wait_s=waited[name],
        )
        for name, title in TITLES.items()
    }


def text(found: dict[str, SystemCosts]) -> str:
    """A table with a row for each system."""
    header = (
        *("training", "CPU s a GB", "of DDP's"),
        *("memory beside", "of DDP's", "longest wait for the GIL"),
    )
    rows = [
        (
            one.title,
            f"{one.cpu_s_per_gb:.2f}",
            _ratio(one.cpu_over_ddp),
            "" if one.memory_share is None else f"{one.memory_share:.2f} models",
            _ratio(one.memory_over_ddp),
            f"{one.longest_gil_wait_s * 1e3:.2f} ms",
        )
        for one in found.values()
    ]
    return table(header, rows)


def _ratio(value: float | None) -> str:
    return "" if value is None else times(value)
