"""iperf3 flows between two nodes under the agent's tree, counted by the kernel's classes.

The senders use reno, as P3's sockets do. BBR keeps next to no queue by design, so that no band of
its flows is ever backlogged for long. The urgent flow is several connections: one keeps a
millisecond queued at most (TCP small queues), and a sender that waits for a processor is later.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from experiments.backlogged import Sample, Shares, shares
from p3_shaper.bands import default_table
from p3_shaper.cluster import ClusterError, Node, Pair
from p3_shaper.netlink import Netlink, open_netlink
from p3_shaper.rates import Rate
from p3_shaper.tcmessage import Counters
from p3_shaper.tree import htb_tree

TABLE = default_table()
WARM_UP_S = 1
CONNECTIONS = 4
"""Of the urgent flow; 8 MB of its packets wait at 10 Gbit/s then, 6 ms."""
_SAMPLE_S = 0.001
_GIVE_UP_S = 60.0
_ON_THE_WIRE = 1514 / 1448
"""Bytes with Ethernet, IP and TCP headers for each byte of payload, at an MTU of 1500."""
_FIRST_PORT = 5201
_PREFIX = "p3b"
_NOTHING = Counters()


@dataclass(frozen=True, slots=True)
class Flows:
    """Flows that run: one in the most urgent band, and one in the lowest if `low` is its class."""

    node: Node
    netlink: Netlink
    index: int
    top: int
    low: int | None

    async def shares(self, seconds: float) -> Shares:
        """What both send from now on; ClusterError if one has ended."""
        end = time.monotonic() + seconds
        samples = [await self._sample()]
        while samples[-1].time < end or len(samples) < 2:
            await asyncio.sleep(_SAMPLE_S)
            samples.append(await self._sample())
        if len(self.node.running()) < (1 if self.low is None else 2):
            raise ClusterError(f"a sender ended early in {self.node.name}; is iperf3 installed?")
        return shares(samples)

    async def sent(self, size: int) -> None:
        """Wait until the urgent flow has sent `size` bytes, and the other one something."""
        while (now := await self._sample()).top.bytes < size or not (now.low.bytes or not self.low):
            await asyncio.sleep(_SAMPLE_S)

    async def _sample(self) -> Sample:
        found = await self.netlink.statistics(self.index)
        low = _NOTHING if self.low is None else found[self.low]
        return Sample(time.monotonic(), found[self.top], low)


async def unshaped(seconds: float) -> float:
    """Bits a second of one flow on a link without a tree, as iperf3 counts them, with headers."""
    with _pair() as pair, _server(pair, 0):
        client = [*_client(pair, 0, 0), "--time", str(round(seconds) + WARM_UP_S)]
        done = await asyncio.to_thread(
            pair.nodes[0].run, [*client, "--omit", str(WARM_UP_S), "--json"]
        )
        received = json.loads(done.stdout)["end"]["sum_received"]
        return float(received["bits_per_second"]) * _ON_THE_WIRE


@asynccontextmanager
async def under_a_tree(rate: Rate, *, with_a_lower: bool) -> AsyncIterator[Flows]:
    """iperf3's flows at `rate`. Raises ClusterError, TcError."""
    with _pair() as pair, _server(pair, 0), _server(pair, 1):
        top = [*_client(pair, 0, TABLE.bands[0].tos), "--parallel", str(CONNECTIONS)]
        low = _client(pair, 1, TABLE.bands[-1].tos)
        clients = [[*client, "--time", "0"] for client in (top, low)]
        async with counted(pair, rate, clients[: 1 + with_a_lower]) as flows:
            yield flows


@asynccontextmanager
async def counted(pair: Pair, rate: Rate, senders: Sequence[Sequence[str]]) -> AsyncIterator[Flows]:
    """Flows from the pair's first node at `rate`, once they have been sending for a second.

    `senders` are commands without an end: one for the most urgent band, and one for the lowest or
    none. Raises ClusterError, TcError.
    """
    node = pair.nodes[0]
    async with open_netlink(node.name) as netlink:
        link = await netlink.link(Node.device)
        tree = htb_tree(TABLE, rate, link.limits)
        await netlink.ensure(link.index, tree)
        for command in senders:
            node.popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        lower = tree.bands[-1] if len(senders) > 1 else None
        flows = Flows(node, netlink, link.index, tree.bands[0], lower)
        try:
            async with asyncio.timeout(_GIVE_UP_S):
                await flows.sent(rate.bytes_per_second * WARM_UP_S)
        except TimeoutError as error:
            raise ClusterError(f"{node.name} sends next to nothing; is iperf3 there?") from error
        yield flows


@contextmanager
def _pair() -> Iterator[Pair]:
    """Two nodes whose flows are received by one processor each (RPS), as a real NIC's are.

    A veth hands packets to the processor that sent them: a flow that moves is received out of
    order, TCP takes that for loss and slows down, and the band runs empty.
    """
    with Pair(_PREFIX) as pair:
        for node in pair.nodes:
            queue = f"/sys/class/net/{node.device}/queues/rx-0/rps_cpus"
            node.run(["sh", "-c", f"sed -n 's/^Cpus_allowed:\\t//p' /proc/self/status > {queue}"])
        yield pair


@contextmanager
def _server(pair: Pair, number: int) -> Iterator[None]:
    """An iperf3 that listens; it ends with its node."""
    peer = pair.nodes[1]
    process = peer.popen(
        [
            *("iperf3", "--server", "--forceflush", "--bind", peer.address),
            *("--port", str(_FIRST_PORT + number)),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    with process.stdout:
        while "listening" not in (line := process.stdout.readline()):
            if not line:
                raise ClusterError(f"iperf3 ended before it listened in {peer.name}")
        yield


def _client(pair: Pair, number: int, tos: int) -> list[str]:
    return [
        *("iperf3", "--client", pair.nodes[1].address, "--port", str(_FIRST_PORT + number)),
        *("--congestion", "reno", "--tos", str(tos)),
    ]
