"""A cluster on one machine: network namespaces joined by a bridge, every link shaped both ways.

Each node is a network namespace with one device, `eth0`; the bridge lives in a namespace of its
own, the switch. A node's egress is shaped in the node, where TCP small queues still see it; what
the switch sends to a node is shaped at the switch's port, which holds `port_buffer` bytes. Needs
root and iproute2.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from p3_shaper.cluster_nodes import (
    DEVICE,
    MAX_NODES,
    ClusterError,
    Node,
    NodeGroup,
    batch,
    clear_stale,
)
from p3_shaper.errors import TcError
from p3_shaper.netlink import open_netlink
from p3_shaper.rates import Rate
from p3_shaper.tree import TreeError, link_tree

__all__ = ["MAX_NODES", "Cluster", "ClusterError", "Node", "Pair", "clear_stale"]

PORT_BUFFER = 256_000
"""Bytes that a switch port holds for its node: a shallow switch."""
HOST_QUEUE = 4_000_000
"""Bytes that a node's own queue holds before it drops; TCP small queues keep it far from full."""


class Cluster(NodeGroup):
    """`nodes` nodes joined by a bridge; everything is removed when the `with` block is left.

    `rate` shapes every link, both ways; None leaves the links unshaped. `port_buffer` is what a
    switch port holds for its node, in bytes. `switch` is the bridge's namespace, where
    `nodes[i].port` sends to node i.

    Raises ClusterError when it cannot be made (no root, no iproute2, a kernel without HTB, a port
    buffer below the largest packet). With a rate it needs a thread without a running event loop.
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
            self.reshape(self.rate, self.port_buffer)

    def reshape(self, rate: Rate, port_buffer: int) -> None:
        """Give every link another rate and every switch port another buffer, under what runs.

        Nothing else may have its own tree on the nodes' devices meanwhile. ClusterError.
        """
        self.rate, self.port_buffer = rate, port_buffer
        try:
            asyncio.run(self._shape(rate))
        except (TcError, TreeError) as error:
            raise ClusterError(f"{self.switch}: {error}") from error

    async def _shape(self, rate: Rate) -> None:
        for node in self.nodes:
            await _shape(node.name, {DEVICE: HOST_QUEUE}, rate)
        await _shape(self.switch, {node.port: self.port_buffer for node in self.nodes}, rate)


class Pair(NodeGroup):
    """Two nodes joined by one veth pair, unshaped and without a switch between them."""

    def __init__(self, prefix: str = "p3") -> None:
        super().__init__(2, prefix)

    def _connect(self) -> None:
        left, right = self.nodes
        line = f"link add {DEVICE} type veth peer name {DEVICE} netns {right.name}"
        batch("ip", [line], left.name)


async def _shape(namespace: str, queues: Mapping[str, int], rate: Rate) -> None:
    """Shapes devices of one namespace; `queues` gives each one's queue in bytes."""
    async with open_netlink(namespace) as netlink:
        for device, queue in queues.items():
            link = await netlink.link(device)
            await netlink.ensure(link.index, link_tree(rate, queue, link.limits))
