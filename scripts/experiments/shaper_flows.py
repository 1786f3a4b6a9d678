"""iperf3 flows between two nodes under the agent's tree, counted by the kernel's classes."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass

from p3_shaper.bands import default_table
from p3_shaper.cluster import ClusterError, Node, Pair
from p3_shaper.netlink import open_netlink
from p3_shaper.rates import Rate
from p3_shaper.tree import htb_tree

TABLE = default_table()
WARM_UP_S = 1.0
SAMPLES = 50
_ON_THE_WIRE = 1514 / 1448
"""Bytes with Ethernet, IP and TCP headers for each byte of payload, at an MTU of 1500."""
_FIRST_PORT = 5201
_PREFIX = "p3b"


@dataclass(frozen=True, slots=True)
class Shares:
    """Two flows: bits a second of the urgent one, and the other's part of both.

    `dry` is the part of samples in which nothing of the urgent one waited: what the other took
    then is no leak of the tree, for want of processor the urgent one had sent too little.
    """

    top: float
    leak: float
    dry: float


async def unshaped(seconds: float) -> float:
    """Bits a second of one flow on a link without a tree, as iperf3 counts them, with headers."""
    with _pair() as pair, _server(pair, 0):
        done = await asyncio.to_thread(
            pair.nodes[0].run, [*_client(pair, 0, 0, seconds), "--omit", str(int(WARM_UP_S))]
        )
        received = json.loads(done.stdout)["end"]["sum_received"]
        return float(received["bits_per_second"]) * _ON_THE_WIRE


async def alone(rate: Rate, seconds: float) -> float:
    """Bits a second of one flow in the most urgent band at `rate`."""
    (found,), _ = await _counted(rate, seconds, (0,))
    return found


async def beside_a_lower_band(rate: Rate, seconds: float) -> Shares:
    """A flow in the most urgent band while one in the lowest is sending too."""
    (top, low), dry = await _counted(rate, seconds, (0, len(TABLE) - 1))
    return Shares(top, low / (top + low), dry)


async def _counted(rate: Rate, seconds: float, bands: tuple[int, ...]) -> tuple[list[float], float]:
    """Bits a second of one flow in each of `bands`, all at once; how often the first was dry."""
    async with AsyncExitStack() as exits:
        pair = exits.enter_context(_pair())
        netlink = await exits.enter_async_context(open_netlink(pair.nodes[0].name))
        link = await netlink.link(Node.device)
        tree = htb_tree(TABLE, rate, link.limits)
        await netlink.ensure(link.index, tree)
        for number, band in enumerate(bands):
            exits.enter_context(_server(pair, number))
            client = _client(pair, number, TABLE.bands[band].tos, seconds + 2 * WARM_UP_S)
            pair.nodes[0].popen(client, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        await asyncio.sleep(WARM_UP_S)
        start, before = time.monotonic(), await netlink.statistics(link.index)
        backlogs = []
        for _ in range(SAMPLES):
            await asyncio.sleep(seconds / SAMPLES)
            backlogs.append((await netlink.statistics(link.index))[tree.bands[bands[0]]].backlog)
        took, after = time.monotonic() - start, await netlink.statistics(link.index)
        if len(pair.nodes[0].running()) < len(bands):
            raise ClusterError(f"iperf3 ended early in {pair.nodes[0].name}; is it installed?")
    classes = [tree.bands[band] for band in bands]
    rates = [8 * (after[item].bytes - before[item].bytes) / took for item in classes]
    return rates, backlogs.count(0) / SAMPLES


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
    """An iperf3 that listens; it ends with its one client, or with its node."""
    peer = pair.nodes[1]
    command = [
        "iperf3",
        "--server",
        "--one-off",
        "--forceflush",
        "--bind",
        peer.address,
    ]
    command += ["--port", str(_FIRST_PORT + number)]
    process = peer.popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    with process.stdout:
        while "listening" not in (line := process.stdout.readline()):
            if not line:
                raise ClusterError(f"iperf3 ended before it listened in {peer.name}")
        yield


def _client(pair: Pair, number: int, tos: int, seconds: float) -> list[str]:
    return [
        *("iperf3", "--client", pair.nodes[1].address, "--port", str(_FIRST_PORT + number)),
        *("--json", "--time", str(round(seconds)), "--tos", str(tos)),
    ]
