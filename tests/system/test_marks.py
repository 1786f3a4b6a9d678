"""The marks of the bands as they are on the wire, seen by scapy, handshakes and all."""

from __future__ import annotations

import subprocess
import sys

import pytest
from support import marked_peer
from support.capture import Packet, capture

from p3_shaper.bands import default_table
from p3_shaper.cluster import Pair

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


def assert_complete(flow: list[Packet]) -> None:
    """One direction of a connection was seen from its SYN to its FIN, with all its bytes."""
    assert "S" in flow[0].flags
    assert any("F" in packet.flags for packet in flow)
    assert sum(packet.payload for packet in flow) == len(marked_peer.MESSAGE)
