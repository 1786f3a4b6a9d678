"""A little of HTTP/1.1 (RFC 9112), enough for a Prometheus scrape: one GET a connection."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from p3_agent.config import TcpAddress, UnixAddress
from p3_agent.errors import SENTENCES, AgentError
from p3_agent.messages import Status
from p3_agent.serving import BACKLOG, accept, unix_listener

log = logging.getLogger(__name__)

MAX_HEAD = 8192
MAX_CLIENTS = 16
PATIENCE_S = 5.0
_OPTION = "--metrics"


@dataclass(frozen=True, slots=True)
class Response:
    """A status line's end, like "200 OK", and a body."""

    status: str
    body: bytes
    content_type: str = "text/plain; charset=utf-8"

    def encode(self, *, with_body: bool = True) -> bytes:
        """The bytes on the wire."""
        head = (
            f"HTTP/1.1 {self.status}\r\nContent-Type: {self.content_type}\r\n"
            f"Content-Length: {len(self.body)}\r\nConnection: close\r\n\r\n"
        )
        return head.encode("ascii") + (self.body if with_body else b"")


@contextmanager
def listening_at(address: UnixAddress | TcpAddress) -> Iterator[socket.socket]:
    """A listening socket there; AgentError when it cannot be had."""
    if isinstance(address, UnixAddress):
        with unix_listener(address.path, socket.SOCK_STREAM, _OPTION) as listener:
            yield listener
        return
    try:
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        listener = socket.create_server(
            (address.host, address.port), family=family, backlog=BACKLOG
        )
    except OSError as error:
        raise AgentError(
            f"cannot listen at {address}: {error.strerror or error}; choose another with {_OPTION}"
        ) from error
    with listener:
        listener.setblocking(False)
        yield listener


@contextmanager
def scraped(
    address: UnixAddress | TcpAddress | None, status: Callable[[], Awaitable[Status]]
) -> Iterator[Sequence[Callable[[], Coroutine[None, None, None]]]]:
    """The work of serving metrics at `address`; none for None.

    AgentError when it cannot be listened there, or prometheus-client is not installed.
    """
    if address is None:
        yield ()
        return
    try:
        from p3_agent import metrics  # noqa: PLC0415 - its library is an extra
    except ModuleNotFoundError as error:
        raise AgentError(
            f"metrics need {error.name}, which is not installed: "
            "pip install 'prometheus-client>=0.20', or leave metrics out"
        ) from error

    async def render() -> bytes:
        return metrics.exposition(await status())

    with listening_at(address) as listener:
        log.info("metrics at %s", _where(listener))
        yield (MetricsServer(listener, render, metrics.CONTENT_TYPE).serve,)


def _where(listener: socket.socket) -> str:
    name = listener.getsockname()
    return f"unix:{name}" if isinstance(name, str) else str(TcpAddress(name[0], name[1]))


class MetricsServer:
    """Answers scrapes on a listening socket with what `render` makes."""

    def __init__(
        self, listener: socket.socket, render: Callable[[], Awaitable[bytes]], content_type: str
    ) -> None:
        self._listener = listener
        self._render = render
        self._content_type = content_type
        self._clients = 0

    async def serve(self) -> None:
        """Accept and answer until cancelled; a client's fault ends that client alone."""
        await accept(self._listener, self._client)

    async def _client(self, connection: socket.socket) -> None:
        self._clients += 1
        try:
            async with asyncio.timeout(PATIENCE_S):
                data = await self._answer(connection)
                await asyncio.get_running_loop().sock_sendall(connection, data)
        finally:
            self._clients -= 1

    async def _answer(self, connection: socket.socket) -> bytes:
        if self._clients > MAX_CLIENTS:
            return Response("503 Service Unavailable", b"too many scrapes at once\n").encode()
        head = await _read_head(connection)
        if head is None:
            return Response("431 Request Header Fields Too Large", b"").encode()
        words = head.partition(b"\r\n")[0].split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return Response("400 Bad Request", b"not HTTP/1.1\n").encode()
        method, target = words[0], words[1].partition(b"?")[0]
        if target != b"/metrics":
            return Response("404 Not Found", b"the metrics are at /metrics\n").encode()
        if method not in (b"GET", b"HEAD"):
            return Response("405 Method Not Allowed", b"GET only\n").encode()
        response = await self._metrics()
        return response.encode(with_body=method == b"GET")

    async def _metrics(self) -> Response:
        try:
            return Response("200 OK", await self._render(), self._content_type)
        except SENTENCES as error:
            return Response("500 Internal Server Error", f"{error}\n".encode())


async def _read_head(connection: socket.socket) -> bytes | None:
    """Everything up to the empty line, or None for more than MAX_HEAD bytes without one."""
    loop = asyncio.get_running_loop()
    head = b""
    while b"\r\n\r\n" not in head:
        if len(head) > MAX_HEAD:
            return None
        data = await loop.sock_recv(connection, MAX_HEAD)
        if not data:
            raise ConnectionResetError("the client left before it had asked")
        head += data
    return head
