"""Sockets in other network namespaces, opened without leaving one's own.

A thread enters the namespace, opens the socket and ends. pyroute2 would fork a child: that one
inherits an event loop's signal pipe, and the SIGTERM that ends it reaches the parent's handler.
"""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Callable
from pathlib import Path
from threading import Thread

_CLONE_NEWNET = 0x4000_0000
_NAMED = Path("/run/netns")


def socket_in(namespace: str | None, family: int, kind: int, protocol: int = 0) -> socket.socket:
    """A socket of `namespace`: a name as `ip netns` shows it, a path, or None for one's own.

    Raises OSError: FileNotFoundError for a name that does not exist (nothing is created),
    PermissionError without CAP_SYS_ADMIN.
    """
    if namespace is None:
        return socket.socket(family, kind, protocol)
    return _in_thread(lambda: enter(namespace), family, kind, protocol)


def enter(namespace: str) -> None:
    """Move the calling thread to `namespace`, and what it starts. Raises as `socket_in`."""
    path = Path(namespace) if "/" in namespace else _NAMED / namespace
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _call("setns", descriptor, _CLONE_NEWNET)
    finally:
        os.close(descriptor)


def socket_in_new(family: int, kind: int, protocol: int = 0) -> socket.socket:
    """A socket of a new, nameless namespace, which goes when the socket is closed.

    Raises PermissionError without CAP_SYS_ADMIN.
    """
    return _in_thread(lambda: _call("unshare", _CLONE_NEWNET), family, kind, protocol)


def _in_thread(enter: Callable[[], None], family: int, kind: int, protocol: int) -> socket.socket:
    outcome: list[socket.socket | OSError] = []

    def work() -> None:
        try:
            enter()
            outcome.append(socket.socket(family, kind, protocol))
        except OSError as error:
            outcome.append(error)

    thread = Thread(target=work, name="p3-namespace")
    thread.start()
    thread.join()
    if isinstance(outcome[0], OSError):
        raise outcome[0]
    return outcome[0]


def _call(name: str, *arguments: int) -> None:
    """A function of the C library; the namespace of the calling thread alone changes."""
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
