"""A cluster on one machine: network namespaces joined by a bridge, every link shaped both ways.

Each node is a network namespace with one device, `eth0`; the bridge lives in a namespace of its
own, the switch. A node's egress is shaped in the node, where TCP small queues still see it; what
the switch sends to a node is shaped at the switch's port, which holds `port_buffer` bytes. Needs
root and iproute2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from p3_shaper.cluster_nodes import DEVICE, ClusterError, Node, NodeGroup, batch, clear_stale

if TYPE_CHECKING:
    from p3_shaper.rates import Rate

__all__ = ["Cluster", "ClusterError", "Node", "Pair", "clear_stale"]

PORT_BUFFER = 256_000
"""Bytes that a switch port holds for its node: a shallow switch."""
HOST_QUEUE = 4_000_000
"""Bytes that a node's own queue holds before it drops; TCP small queues keep it far from full."""


class Cluster(NodeGroup):
    """`nodes` nodes joined by a bridge; everything is removed when the `with` block is left.

    `rate` shapes every link, both ways; None leaves the links unshaped. `port_buffer` is what a
    switch port holds for its node, in bytes. `switch` is the bridge's namespace, where
    `nodes[i].port` sends to node i.

    Raises ClusterError when a command fails (no root, no iproute2, a kernel without HTB).
    """

    def __init__(
        self,
        nodes: int = 4,
        rate: Rate | None = None,
        port_buffer: int = PORT_BUFFER,
        prefix: str = "p3",
    ) -> None:
        super().__init__(nodes, prefix)
        self.rate = rate
        self.port_buffer = port_buffer
        self.switch = self._name.namespace("switch")

    def _connect(self) -> None:
        # Both ends are made where they belong: the caller's namespace never sees a device of ours.
        # Without snooping, neighbour discovery does not depend on a multicast querier.
        batch("ip", [f"netns add {self.switch}"])
        lines = [
            "link set lo up",
            "link add bridge0 type bridge mcast_snooping 0",
            "link set bridge0 addrgenmode none up",
        ]
        for node in self.nodes:
            peer = f"peer name {DEVICE} netns {node.name}"
            lines += [
                f"link add {node.port} type veth {peer}",
                f"link set {node.port} addrgenmode none master bridge0 up",
            ]
        batch("ip", lines, self.switch)
        if self.rate is not None:
            self._shape(self.rate)

    def _shape(self, rate: Rate) -> None:
        for node in self.nodes:
            batch("tc", _shape_lines(DEVICE, rate, HOST_QUEUE), node.name)
            batch("tc", _shape_lines(node.port, rate, self.port_buffer), self.switch)


class Pair(NodeGroup):
    """Two nodes joined by one veth pair, unshaped and without a switch between them."""

    def __init__(self, prefix: str = "p3") -> None:
        super().__init__(2, prefix)

    def _connect(self) -> None:
        left, right = self.nodes
        line = f"link add {DEVICE} type veth peer name {DEVICE} netns {right.name}"
        batch("ip", [line], left.name)


def _shape_lines(device: str, rate: Rate, buffer_bytes: int) -> list[str]:
    burst = max(2 * 65536, rate.bits_per_second * 150 // 8_000_000)
    speed = f"{rate.bits_per_second}bit"
    return [
        f"qdisc add dev {device} root handle 7053: htb default 10",
        f"class add dev {device} parent 7053: classid 7053:10 htb rate {speed} ceil {speed} "
        f"burst {burst} cburst {burst} quantum 131072",
        f"qdisc add dev {device} parent 7053:10 bfifo limit {buffer_bytes}",
    ]
