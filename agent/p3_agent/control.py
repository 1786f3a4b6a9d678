"""The control socket's server: bounded requests in, typed replies out, rights by SO_PEERCRED."""

from __future__ import annotations

import asyncio
import errno
import grp
import logging
import os
import socket
import stat
import struct
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from p3_agent.errors import SENTENCES, AgentError
from p3_agent.messages import (
    MAX_REQUEST,
    PROTOCOL,
    WRITES,
    AnyReply,
    AnyRequest,
    Bands,
    Confirm,
    ControlError,
    Done,
    GetBands,
    GetStatus,
    Hello,
    Reconcile,
    Refusal,
    SetRate,
    Status,
    Welcome,
    decode_request,
    encode,
)

log = logging.getLogger(__name__)

BACKLOG = 1024
MAX_CLIENTS = 256  # well under the usual 1024 file descriptors
IDLE_S = 60.0
SEND_S = 5.0

_SO_PEERGROUPS = 59  # Linux 4.13 and later; the socket module has no name for it
_MAX_PEERGROUPS = 1024  # bytes; what getsockopt takes at most


@dataclass(frozen=True, slots=True)
class Peer:
    """Who is at the other end, as the kernel recorded it when the client connected."""

    uid: int
    gids: frozenset[int]

    @classmethod
    def of(cls, connection: socket.socket) -> Peer:
        """Read SO_PEERCRED and SO_PEERGROUPS."""
        size = struct.calcsize("iII")
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        _, uid, gid = struct.unpack("iII", credentials)
        return cls(uid, frozenset((gid, *_supplementary_groups(connection))))


def _supplementary_groups(connection: socket.socket) -> array[int]:
    groups = array("I")
    try:
        groups.frombytes(connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _MAX_PEERGROUPS))
    except OSError as error:
        # In more groups than fit, or an older kernel: the primary group still counts.
        if error.errno not in (errno.ERANGE, errno.ENOPROTOOPT):
            raise
    return groups


def group_id(name: str) -> int | None:
    """The group whose members may write, or None when this machine has no such group."""
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return None


class Handler(Protocol):
    """What the server asks of the agent; SENTENCES become replies with code `failed`."""

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


@contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    """A bound, listening socket at `path`, removed at the end; clients wait until it is served.

    Makes the folder. A socket that nobody serves any more is replaced. Raises AgentError when
    another agent listens there, or the path cannot be used.
    """
    with socket.socket(
        socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
    ) as listener:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _remove_stale(path)
            listener.bind(os.fspath(path))
            path.chmod(0o666)  # all may read; who may write is decided for each request
            listener.listen(BACKLOG)
        except OSError as error:
            raise AgentError(
                f"cannot listen at {path}: {error.strerror or error}; choose another with --socket"
            ) from error
        inode = path.stat().st_ino
        try:
            yield listener
        finally:
            _unlink_own(path, inode)


def _remove_stale(path: Path) -> None:
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise AgentError(f"{path} is there and is no socket; choose another with --socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK) as probe:
        if probe.connect_ex(os.fspath(path)) != errno.ECONNREFUSED:
            raise AgentError(f"something listens at {path} already; stop it, or choose --socket")
    path.unlink(missing_ok=True)


def _unlink_own(path: Path, inode: int) -> None:
    try:
        if path.stat().st_ino == inode:
            path.unlink()
    except FileNotFoundError:
        log.warning("the control socket %s was removed by someone else", path)


class ControlServer:
    """Serves `handler` on a listening socket; `group` is the gid that may write besides root."""

    def __init__(self, listener: socket.socket, handler: Handler, group: int | None) -> None:
        self._listener = listener
        self._handler = handler
        self._group = group
        self._clients = 0

    async def serve(self) -> None:
        """Accept and answer until cancelled; a client's fault ends that client alone."""
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as clients:
            while True:
                try:
                    connection, _ = await loop.sock_accept(self._listener)
                except OSError as error:
                    if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ECONNABORTED):
                        raise
                    log.warning("cannot accept a control client: %s", error.strerror)
                    await asyncio.sleep(0.1)  # the queue stays readable: do not spin on it
                    continue
                self._clients += 1
                clients.create_task(self._client(connection))

    async def _client(self, connection: socket.socket) -> None:
        try:
            with connection:
                if self._clients > MAX_CLIENTS:
                    await self._turn_away(connection)
                    return
                await self._converse(connection, Peer.of(connection))
        except OSError as error:  # among them TimeoutError: idle, or does not read its replies
            log.debug("control client dropped: %r", error)
        finally:
            self._clients -= 1

    async def _turn_away(self, connection: socket.socket) -> None:
        # A request left unread at the close would reach the client as a reset, before the reply.
        connection.shutdown(socket.SHUT_RD)
        while connection.recv(MAX_REQUEST):
            pass
        await self._send(
            connection, Refusal("busy", f"{MAX_CLIENTS} clients are connected already; ask later")
        )

    async def _converse(self, connection: socket.socket, peer: Peer) -> None:
        loop = asyncio.get_running_loop()
        while True:
            async with asyncio.timeout(IDLE_S):
                # One byte more than allowed tells a request that is too large from one that fits.
                data = await loop.sock_recv(connection, MAX_REQUEST + 1)
            if not data:
                return
            await self._send(connection, await self._answer(data, peer))

    async def _send(self, connection: socket.socket, reply: AnyReply) -> None:
        async with asyncio.timeout(SEND_S):
            await asyncio.get_running_loop().sock_sendall(connection, encode(reply))

    async def _answer(self, data: bytes, peer: Peer) -> AnyReply:
        try:
            request = decode_request(data)
            self._authorise(request, peer)
            return await self._carry_out(request)
        except ControlError as error:
            return Refusal(error.code, error.reason)
        except SENTENCES as error:
            return Refusal("failed", str(error))

    def _authorise(self, request: AnyRequest, peer: Peer) -> None:
        if not isinstance(request, WRITES) or peer.uid == 0 or self._group in peer.gids:
            return
        raise ControlError(
            "forbidden",
            f"uid {peer.uid} may only read here; ask as root, or as a member of the agent's group",
        )

    async def _carry_out(self, request: AnyRequest) -> AnyReply:
        match request:
            case Hello(protocol):
                if protocol != PROTOCOL:
                    raise ControlError("protocol", f"this agent speaks protocol {PROTOCOL} only")
                return self._handler.welcome()
            case GetBands():
                return self._handler.bands()
            case GetStatus():
                return await self._handler.status()
            case Reconcile():
                return await self._handler.reconcile()
            case Confirm():
                return self._handler.confirm()
            case SetRate(rate):
                return await self._handler.set_rate(rate)
