"""TCP flows between nodes that always have something to send."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from p3_shaper.cluster import Node
from p3_shaper.namespace import socket_in

MEGABYTE = 1_000_000
GIVE_UP_S = 30.0
"""Far beyond what any of this takes: a test that hangs must end."""

FAMILIES = pytest.mark.parametrize(
    "family", [socket.AF_INET, socket.AF_INET6], ids=["ipv4", "ipv6"]
)


class Flow:
    """A TCP connection from one node to another that is always sending, until closed."""

    def __init__(self, sender: socket.socket, receiver: socket.socket) -> None:
        self.sender = sender
        self.received = 0
        self._receiver = receiver
        self._progress = asyncio.Condition()
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    @asynccontextmanager
    async def between(
        cls, node: Node, peer: Node, family: socket.AddressFamily, tos: int
    ) -> AsyncIterator[Flow]:
        """A flow from `node` to `peer`."""
        address = peer.address if family == socket.AF_INET else peer.address6
        async with cls.to(node.name, peer.name, address, tos) as flow:
            yield flow

    @classmethod
    @asynccontextmanager
    async def to(cls, here: str, there: str, address: str, tos: int) -> AsyncIterator[Flow]:
        """A flow from namespace `here` to `address`, which is in namespace `there`."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with (
            socket_in(there, family, socket.SOCK_STREAM) as listener,
            socket_in(here, family, socket.SOCK_STREAM) as sender,
        ):
            for end in (listener, sender):
                _mark(end, family, tos)
                end.setblocking(False)
            listener.bind((address, 0))
            listener.listen()
            loop = asyncio.get_running_loop()
            await loop.sock_connect(sender, listener.getsockname()[:2])
            receiver, _ = await loop.sock_accept(listener)
            with receiver:
                receiver.setblocking(False)
                flow = cls(sender, receiver)
                async with asyncio.timeout(GIVE_UP_S):
                    flow._tasks = [
                        asyncio.create_task(item) for item in (flow._send(), flow._receive())
                    ]
                    try:
                        yield flow
                    finally:
                        await flow.stop()

    async def stop(self) -> None:
        """Send no more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def arrived(self, more: int) -> None:
        """Wait until `more` bytes have arrived from now on."""
        goal = self.received + more
        async with self._progress:
            await self._progress.wait_for(lambda: self.received >= goal)

    def lost(self) -> int:
        """Segments sent again, but for those that turned out to have arrived before.

        tcpi_total_retrans less tcpi_dsack_dups: a probe after a pause is no loss.
        """
        info = self.sender.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 220)
        (sent_again,) = struct.unpack_from("=I", info, 100)
        (arrived_twice,) = struct.unpack_from("=I", info, 216)
        return int(sent_again - arrived_twice)

    async def _send(self) -> None:
        loop = asyncio.get_running_loop()
        data = bytes(1 << 18)
        while True:
            await loop.sock_sendall(self.sender, data)

    async def _receive(self) -> None:
        loop = asyncio.get_running_loop()
        while data := await loop.sock_recv(self._receiver, 1 << 18):
            self.received += len(data)
            async with self._progress:
                self._progress.notify_all()


def _mark(end: socket.socket, family: socket.AddressFamily, tos: int) -> None:
    """Both families: an IPv6 socket may carry IPv4, and HyStart stalls preempted sockets."""
    if family == socket.AF_INET6:
        end.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, tos)
    end.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos)
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
