"""TCP packets as a node's device sees them, by scapy in a process inside the node.

A process of its own, since scapy looks at the interfaces when it is imported.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from p3_shaper.cluster import Node


class Packet(msgspec.Struct, frozen=True):
    """One TCP packet; `tos` is the whole byte of IPv4's TOS or IPv6's traffic class."""

    version: int
    source: str
    source_port: int
    target_port: int
    flags: str
    payload: int
    tos: int


class Capture:
    """A running capture."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def packets(self, timeout: float = 20) -> list[Packet]:
        """All packets, in order. Ends a capture that does not end by itself."""
        output, _ = self._process.communicate(timeout=timeout)
        assert self._process.returncode == 0
        return [msgspec.json.decode(line, type=Packet) for line in output.splitlines()]


@contextmanager
def capture(node: Node, connections: int = 0) -> Iterator[Capture]:
    """Captures TCP on the node's device.

    With `connections` it ends by itself, when both sides of that many have sent their FIN, and
    misses nothing before. Otherwise it ends when its packets are asked for, and the very last ones
    may be missing.
    """
    command = [sys.executable, __file__, node.device, str(connections)]
    pipe = subprocess.PIPE
    with node.popen(command, stdin=pipe, stdout=pipe) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield Capture(process)
        finally:
            process.kill()


def main(device: str, connections: int) -> None:
    """Prints a line when the capture runs, then one line of JSON for each packet."""
    from scapy.config import conf  # noqa: PLC0415
    from scapy.layers.inet import IP, TCP  # noqa: PLC0415
    from scapy.layers.inet6 import IPv6  # noqa: PLC0415
    from scapy.packet import Packet as Frame  # noqa: PLC0415
    from scapy.sendrecv import AsyncSniffer  # noqa: PLC0415

    conf.bufsize = 8 << 20  # the default loses large segments
    packets: list[Packet] = []

    def note(frame: Frame) -> None:
        if TCP not in frame:
            return
        tcp, ip = frame[TCP], frame[IP] if IP in frame else frame[IPv6]
        packets.append(
            Packet(
                version=int(ip.version),
                source=str(ip.src),
                source_port=int(tcp.sport),
                target_port=int(tcp.dport),
                flags=str(tcp.flags),
                payload=len(tcp.payload),
                tos=int(ip.tos if ip.version == 4 else ip.tc),
            )
        )

    def all_closed(_frame: Frame) -> bool:
        ended = {(p.source, p.source_port, p.target_port) for p in packets if "F" in p.flags}
        return 0 < 2 * connections == len(ended)

    def ready() -> None:
        print("ready", flush=True)

    sniffer = AsyncSniffer(
        iface=device, store=False, prn=note, stop_filter=all_closed, started_callback=ready
    )
    sniffer.start()
    if connections == 0:
        sys.stdin.read()
        sniffer.stop(join=False)
    sniffer.join()
    encoder = msgspec.json.Encoder()
    for packet in packets:
        print(encoder.encode(packet).decode())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
