"""The network of a discrete-event model: links, switch ports, racks, slow nodes."""

from __future__ import annotations

from dataclasses import dataclass

from p3.bounds import HEADER_OVERHEAD, communication_s, iteration_bound_s
from p3.profile import Profile
from p3.systems import Collective, System

INCAST_GOODPUT = 0.66
"""What is left of a link when many senders overrun a switch port: measured on four nodes, a
parameter server without control at 750 Mbit/s with 256 KB ports against 4 MB ones."""
INCAST_BURST = 1_000_000
"""Bytes that each sender may have under way before loss holds it back; a smaller port loses."""
LEAST_WINDOW = 2 * 1448
"""Bytes that a sender under control may have under way all the same: two segments."""


@dataclass(frozen=True, slots=True)
class Network:
    """`nodes` nodes whose links carry `bits_per_second` each way, headers included.

    `latency_s`: one message's way, with what software adds. `port_buffer`: bytes that a switch
    port holds. `rack` nodes share uplinks of 1 / `oversubscription` of their links' sum; a rack
    of 0 holds all. `straggler`: the slowest node's compute time over the others'.
    """

    nodes: int
    bits_per_second: float
    latency_s: float = 200e-6
    port_buffer: int = 256_000
    rack: int = 0
    oversubscription: float = 1.0
    straggler: float = 1.0

    def __post_init__(self) -> None:
        """ValueError for what cannot be."""
        if self.nodes < 1:
            raise ValueError(f"{self.nodes} nodes: there is at least 1")
        if not 0 < self.bits_per_second < float("inf"):
            raise ValueError(f"{self.bits_per_second} bit/s: a link carries more than 0")
        if not (self.oversubscription >= 1 and self.straggler >= 1):
            raise ValueError("oversubscription and straggler are ratios of 1 or more")
        if not min(self.latency_s, self.port_buffer, self.rack) >= 0:
            raise ValueError("latency, port buffer and rack are not negative")

    @property
    def racks(self) -> int:
        """How many racks the nodes fill."""
        return -(-self.nodes // self.rack) if 0 < self.rack < self.nodes else 1

    def loses_to_incast(self, system: System) -> bool:
        """Whether `system`'s senders overrun a receiver's port.

        A ring has one sender a receiver. Senders under control share the port, down to the least
        that TCP lets be under way.
        """
        if system.collective == "ring":
            return False
        burst = LEAST_WINDOW if system.incast_control else INCAST_BURST
        return self.port_buffer < (self.nodes - 1) * burst

    def payload_rate(self, system: System) -> float:
        """Bytes of payload a second that a node moves each way while all nodes do."""
        rate = self.bits_per_second / 8 / HEADER_OVERHEAD * self.fabric_share(system.collective)
        return rate * INCAST_GOODPUT if self.loses_to_incast(system) else rate

    def fabric_share(self, collective: Collective) -> float:
        """The part of its link that a node can use while all nodes do, 0 … 1: what racks leave."""
        if self.racks == 1:
            return 1.0
        if collective == "ring":
            # Only one node of a rack has its neighbour in the next.
            return min(1.0, self.rack / self.oversubscription)
        outside = (self.nodes - self.rack) / (self.nodes - 1)
        return min(1.0, 1 / self.oversubscription / outside)

    def communication_s(self, payload_bytes: int) -> float:
        """Least seconds to sum `payload_bytes` over all nodes: of a link, and of a rack's uplink.

        A rack must send what one node must if racks were nodes, whatever the algorithm.
        """
        link = communication_s(payload_bytes, self.nodes, self.bits_per_second)
        uplink = self.rack * self.bits_per_second / self.oversubscription
        return max(link, communication_s(payload_bytes, self.racks, uplink) if uplink else 0.0)

    def bound_s(self, profile: Profile) -> float:
        """Seconds of an iteration that no synchronous system beats.

        The larger of the slowest node's computation and of the least communication.
        """
        return iteration_bound_s(
            self.straggler * profile.compute_s, self.communication_s(profile.payload_bytes)
        )

    def compute_scale(self, system: System) -> float:
        """Compute time over a usual node's.

        All wait for the slowest node; without synchrony only its own share is late.
        """
        if system.synchronous:
            return self.straggler
        return 1 + (self.straggler - 1) / self.nodes
