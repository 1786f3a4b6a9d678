"""Notice at once that a rank went away, by its sockets closing.

A Gloo collective waits for its ring neighbours alone, so a rank that is not the dead one's
neighbour would wait for minutes. Every rank holds a connection to every other; the kernel closes
a dead process's, and whoever polls them knows within a round trip.
"""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

Address = tuple[str, int]

DOUBT_SECONDS = 1.0
_END, _DOUBT = b"x", b"?"


def address_of(name: tuple[object, ...]) -> Address:
    """Host and port of a socket name of either family (IPv6 names have four parts)."""
    return str(name[0]), int(str(name[1]))


class HangupWatch:
    """Calls `on_hangup(rank, host)` from its own thread, once a rank, when a socket of it closes.

    After `doubt()` it calls `on_doubt()` unless a rank was found to have gone. Owns `sockets`:
    `close` shuts the connections down for their other holders too.
    """

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        ranks: Mapping[Address, int],
        on_hangup: Callable[[int, str], None],
        on_doubt: Callable[[], None],
    ) -> None:
        self._sockets = tuple(sockets)
        self._on_hangup = on_hangup
        self._on_doubt = on_doubt
        self._peers = {
            sock.fileno(): (ranks[peer], peer[0])
            for sock in self._sockets
            if (peer := address_of(sock.getpeername())) in ranks
        }
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._thread = threading.Thread(target=self._run, name="p3-hangup", daemon=True)
        self._thread.start()

    def doubt(self) -> None:
        """A transfer failed: find out whether a rank went away, which may not be seen yet."""
        with suppress(OSError):  # already closed, or doubted more often than a pipe holds
            os.write(self._wake_write, _DOUBT)

    def close(self) -> None:
        """End the thread, shut every connection down. Again is harmless."""
        if not self._thread.is_alive() and self._wake_write < 0:
            return
        os.write(self._wake_write, _END)
        self._thread.join()
        os.close(self._wake_read)
        os.close(self._wake_write)
        self._wake_write = -1
        for sock in self._sockets:
            with suppress(OSError):  # the peer may have been first
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def _run(self) -> None:
        known: set[int] = set()
        wait_s: float | None = None
        with select.epoll() as poller:
            poller.register(self._wake_read, select.EPOLLIN)
            for number in self._peers:
                poller.register(number, select.EPOLLRDHUP)
            while True:
                events = [number for number, _ in poller.poll(wait_s)]
                if not events:
                    wait_s = None
                    self._on_doubt()
                if self._wake_read in events:
                    events.remove(self._wake_read)
                    if _END in os.read(self._wake_read, 4096):
                        return
                    wait_s = DOUBT_SECONDS
                for number in events:
                    poller.unregister(number)
                    self._report(*self._peers[number], known)

    def _report(self, rank: int, host: str, known: set[int]) -> None:
        if rank not in known:
            known.add(rank)
            self._on_hangup(rank, host)
