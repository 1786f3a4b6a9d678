"""The marks of the bands as they are on the wire, seen by scapy, handshakes and all."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack

import pytest
from support import marked_peer, marked_rank
from support.capture import Packet, capture

from p3_shaper.bands import default_table
from p3_shaper.cluster import Pair

RANK = [sys.executable, "-W", "error", marked_rank.__file__]
PEER = [sys.executable, marked_peer.__file__]
BANDS = default_table().bands


@pytest.mark.parametrize("version", [4, 6])
def test_every_packet_of_a_band_carries_its_mark(pair: Pair, version: int) -> None:
    client, server = pair.nodes
    address = server.address if version == 4 else server.address6
    with (
        capture(client, len(BANDS)) as captured,
        server.popen([*PEER, "listen", address], stdout=subprocess.PIPE) as listening,
    ):
        assert listening.stdout is not None
        ports = listening.stdout.readline().split()
        client.run([*PEER, "connect", address, *ports], timeout=60)
        packets = captured.packets()
        assert listening.wait(timeout=60) == 0
    for band, port in zip(BANDS, ports, strict=True):
        forth = [packet for packet in packets if packet.target_port == int(port)]
        back = [packet for packet in packets if packet.source_port == int(port)]
        for flow in (forth, back):
            assert {packet.version for packet in flow} == {version}
            assert {packet.tos for packet in flow} == {band.tos}
            assert_complete(flow)


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("engine", ["groups", "ps"])
def test_an_engine_marks_all_it_sends(pair: Pair, engine: str, version: int) -> None:
    first = pair.nodes[0]
    if version == 6:  # Gloo prefers IPv4 where a device has both
        for node in pair.nodes:
            node.run(["ip", "-4", "address", "flush", "dev", node.device])
    source = first.address if version == 4 else first.address6
    with capture(first) as captured:
        payload_sent = train(pair, engine, source)
        packets = captured.packets()
    assert {packet.version for packet in packets} == {version}
    sent = Counter[int]()
    for packet in packets:
        if packet.source == source:
            sent[packet.tos] += packet.payload
    unmarked = sent.pop(0)
    assert set(sent) == {band.tos for band in BANDS}
    assert sent.total() >= payload_sent >= marked_rank.GRADIENT_BYTES
    # What remains goes over torch's own connections: the parameters once, and what is agreed on.
    assert unmarked < 2 * marked_rank.GRADIENT_BYTES / marked_rank.ITERATIONS


def train(pair: Pair, engine: str, master: str) -> int:
    """Trains with a rank on each node; returns the payload bytes that rank 0 says it sent."""
    pipe = subprocess.PIPE
    with ExitStack() as exits:
        ranks = []
        for node in pair.nodes:
            env = {
                **os.environ,
                "RANK": str(node.index),
                "WORLD_SIZE": str(len(pair.nodes)),
                "MASTER_ADDR": master,
                "MASTER_PORT": "29500",
                "GLOO_SOCKET_IFNAME": node.device,
                "OMP_NUM_THREADS": "1",
                "P3_AGENT_SOCKET": "/nonexistent/p3-agent.sock",
            }
            rank = node.popen([*RANK, engine], stdout=pipe, stderr=pipe, env=env)
            exits.enter_context(rank)
            exits.callback(rank.kill)
            ranks.append(rank)
        told = [rank.communicate(timeout=90) for rank in ranks]
        assert [rank.returncode for rank in ranks] == [0, 0], told
    return int(told[0][0])


def assert_complete(flow: list[Packet]) -> None:
    """One direction of a connection was seen from its SYN to its FIN, with all its bytes."""
    assert "S" in flow[0].flags
    assert any("F" in packet.flags for packet in flow)
    assert sum(packet.payload for packet in flow) == len(marked_peer.MESSAGE)
