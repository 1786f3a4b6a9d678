"""The control socket's server: bounded requests in, typed replies out, rights by SO_PEERCRED."""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from p3_agent.errors import SENTENCES
from p3_agent.jobs import Jobs
from p3_agent.messages import (
    MAX_REPLY,
    MAX_REQUEST,
    PROTOCOL,
    WRITES,
    AnyReply,
    AnyRequest,
    AnyWrite,
    Bands,
    Confirm,
    ControlError,
    Done,
    GetBands,
    GetStatus,
    Hello,
    JobStatus,
    Reconcile,
    Refusal,
    RegisterJob,
    SetRate,
    Status,
    Welcome,
    decode_request,
    encode,
)
from p3_agent.peers import Limits, Peer, Seats
from p3_agent.serving import accept, room_for, unix_listener

log = logging.getLogger(__name__)


def listening(path: Path) -> AbstractContextManager[socket.socket]:
    """A listening control socket at `path`, as `unix_listener`."""
    return unix_listener(path, socket.SOCK_SEQPACKET, "--socket")


class Handler(Protocol):
    """What the server asks of the agent; SENTENCES become replies with code `failed`."""

    @property
    def jobs(self) -> Jobs:
        """The processes that train."""
        ...

    @property
    def group(self) -> int | None:
        """The gid whose members may write besides root, None for nobody."""
        ...

    def welcome(self) -> Welcome:
        """Answer Hello."""
        ...

    def bands(self) -> Bands:
        """Answer GetBands."""
        ...

    async def status(self) -> Status:
        """Answer GetStatus."""
        ...

    async def reconcile(self) -> Done:
        """Answer Reconcile."""
        ...

    def confirm(self) -> Done:
        """Answer Confirm."""
        ...

    async def set_rate(self, rate: str) -> Done:
        """Answer SetRate."""
        ...


class Conversation:
    """One client's requests and their answers; holds the job that the client registered."""

    def __init__(self, handler: Handler, peer: Peer) -> None:
        self._handler = handler
        self._peer = peer
        self.job: JobStatus | None = None

    async def answer(self, data: bytes) -> bytes:
        """The reply to a message of at most MAX_REQUEST + 1 bytes, at most MAX_REPLY long."""
        try:
            reply = await self._reply(decode_request(data))
        except ControlError as error:
            reply = Refusal(error.code, error.reason)
        except SENTENCES as error:
            reply = Refusal("failed", str(error))
        encoded = encode(reply)
        if len(encoded) > MAX_REPLY:
            return encode(Refusal("failed", f"the reply would have more than {MAX_REPLY} bytes"))
        return encoded

    def end(self) -> None:
        """The client is gone, and so is its job."""
        if self.job is not None:
            self._handler.jobs.leave(self.job)
            self.job = None

    async def _reply(self, request: AnyRequest) -> AnyReply:
        if isinstance(request, WRITES):
            self._require_right_to_write()
            return await self._write(request)
        match request:
            case Hello(protocol):
                if protocol != PROTOCOL:
                    raise ControlError("protocol", f"this agent speaks protocol {PROTOCOL} only")
                return self._handler.welcome()
            case GetBands():
                return self._handler.bands()
            case GetStatus():
                return await self._handler.status()
            case RegisterJob(name):
                return self._register(JobStatus(name, self._peer.pid, self._peer.uid))

    async def _write(self, request: AnyWrite) -> Done:
        match request:
            case Reconcile():
                return await self._handler.reconcile()
            case SetRate(rate):
                return await self._handler.set_rate(rate)
            case Confirm():
                return self._handler.confirm()

    def _require_right_to_write(self) -> None:
        peer = self._peer
        if peer.uid != 0 and self._handler.group not in peer.gids:
            raise ControlError(
                "forbidden",
                f"uid {peer.uid} may only read here; ask as root, or as a member of the agent's "
                "group",
            )

    def _register(self, job: JobStatus) -> Done:
        self.end()
        self._handler.jobs.enter(job)
        self.job = job
        return Done(())


class ControlServer:
    """Serves `handler` on a listening socket, as many clients as `limits` and the system allow."""

    def __init__(
        self, listener: socket.socket, handler: Handler, limits: Limits | None = None
    ) -> None:
        asked = limits or Limits()
        clients = room_for(asked.clients)
        if clients < asked.clients:
            log.warning(
                "the limit on open files leaves room for %d clients instead of %d: raise it "
                "(ulimit -n, LimitNOFILE=)",
                clients,
                asked.clients,
            )
        self._limits = replace(asked, clients=clients)
        self._listener = listener
        self._handler = handler
        self._seats = Seats(self._limits)

    async def serve(self) -> None:
        """Accept and answer until cancelled; a client's fault ends that client alone."""
        await accept(self._listener, self._client)

    async def _client(self, connection: socket.socket) -> None:
        peer = Peer.of(connection)
        refusal = self._seats.refusal(peer.uid)
        if refusal is not None:
            await self._turn_away(connection, refusal)
            return
        self._seats.take(peer.uid)
        conversation = Conversation(self._handler, peer)
        try:
            # One reply of the greatest size fits, and not much more waits for a slow reader.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MAX_REPLY)
            await self._converse(connection, conversation)
        finally:
            conversation.end()
            self._seats.leave(peer.uid)

    async def _turn_away(self, connection: socket.socket, reason: str) -> None:
        # A request left unread at the close would reach the client as a reset, before the reply.
        connection.shutdown(socket.SHUT_RD)
        while connection.recv(MAX_REQUEST):
            pass
        await self._send(connection, encode(Refusal("busy", reason)))

    async def _converse(self, connection: socket.socket, conversation: Conversation) -> None:
        loop = asyncio.get_running_loop()
        while True:
            patience = None if conversation.job else self._limits.idle_s
            async with asyncio.timeout(patience):
                # One byte more than allowed tells a request that is too large from one that fits.
                data = await loop.sock_recv(connection, MAX_REQUEST + 1)
            if not data and _is_over(connection):
                return
            await self._send(connection, await conversation.answer(data))
            # Neither receiving nor sending waits while a client keeps asking: others have a turn.
            await asyncio.sleep(0)

    async def _send(self, connection: socket.socket, reply: bytes) -> None:
        async with asyncio.timeout(self._limits.send_s):
            await asyncio.get_running_loop().sock_sendall(connection, reply)


def _is_over(connection: socket.socket) -> bool:
    """Whether a read of nothing was the end, and not a message without bytes."""
    try:
        return not connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
