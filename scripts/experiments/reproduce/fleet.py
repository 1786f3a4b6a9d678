"""Ranks that stay up from one measurement to the next, on a cluster whose links change under them.

Starting four processes with torch costs more than measuring a point does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from experiments import launch
from experiments.messages import Event, Finished
from p3_shaper.cluster import Cluster, Node
from p3_shaper.rates import Rate


class Fleet:
    """A rank on every node of a cluster; a context manager that ends them all.

    Raises ClusterError and launch.LaunchError; after the latter the fleet is of no more use.
    """

    def __init__(self, nodes: int, logs: Path, module: str = "experiments.reproduce.rank") -> None:
        self._module = module
        self._logs = logs
        self._cluster = Cluster(nodes, Rate(1_000_000_000))
        self._exits = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as exits:
            exits.enter_context(self._cluster)
            around = launch.surroundings(self._cluster, self._logs, None)
            self._around = exits.enter_context(around)
            interpreter = Path(sys.executable)
            program = launch.Program("rank", self._module, (), interpreter)
            self._run = launch.start(self._cluster, program, self._around, input_lines=True)
            self._exits = exits.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._exits:
            if error is None:
                self._run.end()

    @property
    def first(self) -> Node:
        """Node 0."""
        return self._cluster.nodes[0]

    def reshape(self, rate: Rate, port_buffer: int) -> None:
        """Every link has this rate from now on, and every switch port holds that much."""
        self._cluster.reshape(rate, port_buffer)

    @contextmanager
    def agents(self, rate: Rate) -> Iterator[None]:
        """Inside, a p3-agent on every node keeps bands apart."""
        with launch.agents(self._around, self._cluster, rate):
            yield

    def tell(self, what: msgspec.Struct, on_event: Callable[[Event], None]) -> list[Finished]:
        """Every rank's result of what `what` asks for, in rank order."""
        self._run.on_event = on_event
        return launch.finished(self._run.tell(msgspec.json.encode(what).decode()))
