"""One end of marked connections, one a band, made as the training side makes them.

`listen HOST` prints the ports, then answers what comes on each; `connect HOST PORT…` sends.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence

from p3 import sockets
from p3_shaper.bands import default_table

MESSAGE = bytes(60_000)
BANDS = default_table().bands


def listen(host: str) -> None:
    """Takes one connection a band and sends back what it gets."""
    listeners = [sockets.listen(sockets.Address(host, 0), band.dscp) for band in BANDS]
    print(*(sockets.bound_address(listener).port for listener in listeners), flush=True)
    for band, listener in zip(BANDS, listeners, strict=True):
        with listener:
            listener.setblocking(True)
            connection, _ = sockets.accept(listener, band.dscp)
        with connection:
            connection.setblocking(True)
            connection.sendall(_receive(connection))


def connect(host: str, ports: Sequence[str]) -> None:
    """Connects on each band, sends, and checks that all came back."""
    for band, port in zip(BANDS, ports, strict=True):
        address = sockets.Address(host, int(port))
        with sockets.start_connect(address, band.dscp) as connection:
            connection.setblocking(True)
            connection.sendall(MESSAGE)
            connection.shutdown(socket.SHUT_WR)
            assert _receive(connection) == MESSAGE


def _receive(connection: socket.socket) -> bytes:
    with connection.makefile("rb") as stream:
        return stream.read()


if __name__ == "__main__":
    if sys.argv[1] == "listen":
        listen(sys.argv[2])
    else:
        connect(sys.argv[2], sys.argv[3:])
