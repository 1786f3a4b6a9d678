"""UDP without end, in packets as large as a qdisc sees (GSO), many of them waiting there.

Run in a node as `python flood.py ADDRESS PORT TOS`. It needs far less of a processor than TCP does,
gets that before others do, and 13 ms of it at 10 Gbit/s wait in the class: a late sender is not
missed.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from p3_shaper.cluster import Node
from p3_shaper.namespace import socket_in

_UDP_SEGMENT = 103  # linux/udp.h
_UDP_GRO = 104
_SO_SNDBUFFORCE = 32  # asm-generic/socket.h
_PAYLOAD = 1472
_SEGMENTS = 44
_SEND_BUFFER = 12 << 20
"""The kernel doubles it; of packets with all that belongs to them, so that 17 MB wait."""


def flood(address: str, port: int, tos: int) -> list[str]:
    """The command that sends to a `sink`."""
    return ["nice", "-n", "-15", sys.executable, __file__, address, str(port), str(tos)]


@contextmanager
def sink(node: Node) -> Iterator[int]:
    """A port that takes whole GSO packets, so that they are cheap, and never reads them."""
    with socket_in(node.name, socket.AF_INET, socket.SOCK_DGRAM) as end:
        end.setsockopt(socket.IPPROTO_UDP, _UDP_GRO, 1)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        end.bind((node.address, 0))
        yield end.getsockname()[1]


def main() -> None:
    """Send until killed."""
    address, port, tos = sys.argv[1:]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, int(tos))
        sender.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, _SEND_BUFFER)
        sender.setsockopt(socket.IPPROTO_UDP, _UDP_SEGMENT, _PAYLOAD)
        sender.connect((address, int(port)))
        packet = bytes(_PAYLOAD * _SEGMENTS)
        while True:
            sender.send(packet)


if __name__ == "__main__":
    main()
