"""Types of the fixtures that make nodes."""

from __future__ import annotations

from typing import Protocol

from p3_shaper.cluster import Cluster
from p3_shaper.rates import Rate


class MakeCluster(Protocol):
    """Makes a cluster that lives until the end of the test."""

    def __call__(
        self, nodes: int = 2, rate: Rate | None = None, port_buffer: int = ...
    ) -> Cluster: ...
