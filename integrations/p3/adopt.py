"""Find the TCP connections that a library opened in this process, to mark and watch them.

Gloo and NCCL never set IP_TOS on their sockets and offer no way to ask for it, so their file
descriptors are found in /proc/self/fd and duplicated: a socket option set on a duplicate holds
for the connection (open(2): both share one open file description).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_FAMILIES = (socket.AF_INET, socket.AF_INET6)


def socket_inodes() -> frozenset[str]:
    """Names such as "socket:[4711]" of every socket that this process holds now."""
    return frozenset(name for _, name in _sockets())


def connections_since(before: frozenset[str]) -> list[socket.socket]:
    """Duplicates of the TCP connections opened since `before`; the caller closes them."""
    return _streams_since(before, listening=False)


def listeners_since(before: frozenset[str]) -> list[socket.socket]:
    """Duplicates of the TCP listeners opened since `before`; the caller closes them."""
    return _streams_since(before, listening=True)


def _streams_since(before: frozenset[str], *, listening: bool) -> list[socket.socket]:
    return [
        stream
        for number, name in _sockets()
        if name not in before and (stream := _stream(number, listening=listening)) is not None
    ]


def _sockets() -> Iterator[tuple[int, str]]:
    for entry in list(Path("/proc/self/fd").iterdir()):
        # A descriptor that another thread closes meanwhile is not one of ours.
        with suppress(OSError):
            name = str(entry.readlink())
            if name.startswith("socket:["):
                yield int(entry.name), name


def _stream(number: int, *, listening: bool) -> socket.socket | None:
    try:
        duplicate = socket.socket(fileno=os.dup(number))
    except OSError:
        return None
    if duplicate.family in _FAMILIES and duplicate.type == socket.SOCK_STREAM:
        if listening and duplicate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return duplicate
        with suppress(OSError):
            if not listening and duplicate.getpeername():
                return duplicate
    duplicate.close()
    return None
