"""Asking an agent: what the training side and `p3-agent status` use.

Needs the standard library, msgspec and `p3_shaper.bands` alone. Every call opens a connection,
asks one thing and closes (`register` keeps it open); none waits longer than `TIMEOUT_S`.
"""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Self, TypeVar

from p3_agent.messages import (
    MAX_REPLY,
    AnyReply,
    Bands,
    Confirm,
    ControlError,
    Done,
    GetBands,
    GetStatus,
    Hello,
    Reconcile,
    Refusal,
    RegisterJob,
    Request,
    SetRate,
    Status,
    Welcome,
    decode_reply,
    encode,
    socket_path,
)
from p3_shaper.bands import BandError, BandTable

__all__ = [
    "ControlError",
    "Registration",
    "announce",
    "bands",
    "confirm",
    "hello",
    "reconcile",
    "register",
    "set_rate",
    "status",
]

TIMEOUT_S = 5.0

Path = str | os.PathLike[str] | None
Answer = TypeVar("Answer", Welcome, Bands, Status, Done)


class Registration:
    """A training process that the agent knows of until this is closed, or the process ends."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Have the agent forget the process; a second time does nothing."""
        self._connection.close()


def bands(socket_path: Path = None) -> BandTable | None:
    """The band table of the agent on this node, or None when no agent listens there.

    `socket_path` defaults to $P3_AGENT_SOCKET, else /run/p3-agent/control.sock. Raises
    ControlError when something listens but does not answer as an agent.
    """
    reply = _ask(socket_path, GetBands(), Bands)
    if reply is None:
        return None
    try:
        return BandTable(reply.dscps, reply.unmarked_share, reply.force)
    except BandError as error:
        raise ControlError("bad-reply", f"the agent's band table cannot work: {error}") from error


def status(socket_path: Path = None) -> Status | None:
    """The agent's tree and counters, or None when no agent listens; ControlError as for `bands`."""
    return _ask(socket_path, GetStatus(), Status)


def hello(socket_path: Path = None) -> Welcome | None:
    """Who listens, or None when nobody does; ControlError `protocol` if it speaks another one."""
    return _ask(socket_path, Hello(), Welcome)


def reconcile(socket_path: Path = None) -> tuple[str, ...] | None:
    """Have the agent mend its tree now; the steps it took, or None when no agent listens.

    Needs root or the agent's group (p3); ControlError `forbidden` otherwise.
    """
    reply = _ask(socket_path, Reconcile(), Done)
    return None if reply is None else reply.steps


def confirm(socket_path: Path = None) -> tuple[str, ...] | None:
    """Keep the bands of an agent that was started with --confirm; otherwise as `reconcile`.

    The one step says what became of it; ControlError `failed` when it comes too late.
    """
    reply = _ask(socket_path, Confirm(), Done)
    return None if reply is None else reply.steps


def set_rate(rate: str, socket_path: Path = None) -> tuple[str, ...] | None:
    """Have the agent shape at `rate` ("10gbit") from now on; otherwise as `reconcile`.

    ControlError `failed` when the rate cannot work.
    """
    reply = _ask(socket_path, SetRate(rate), Done)
    return None if reply is None else reply.steps


def register(name: str, socket_path: Path = None) -> Registration | None:
    """Have the agent count this process as one of the job `name`, in its status and metrics.

    `name` is 1 to 48 of the characters A-Z a-z 0-9 . _ : / -, not a sign first. None when no
    agent listens; raises ControlError as `bands`, `malformed` for another name, `busy` when too
    many are registered already.
    """
    with ExitStack() as stack:
        connection = stack.enter_context(_socket())
        if _ask_on(connection, socket_path, RegisterJob(name), Done) is None:
            return None
        stack.pop_all()
        return Registration(connection)


def announce(name: str, socket_path: Path = None) -> Registration | None:
    """As `register`, for a process that works all the same without: neither waits nor raises.

    The agent's answer is not read, so that a refusal goes unheard. None when no agent listens,
    or when one listens but takes nothing now.
    """
    with ExitStack() as stack:
        connection = stack.enter_context(_socket())
        with suppress(OSError):
            _say(connection, socket_path, RegisterJob(name))
            stack.pop_all()
            return Registration(connection)
    return None


def _say(connection: socket.socket, path: Path, request: Request) -> None:
    connection.setblocking(False)
    connection.connect(socket_path(path))
    connection.sendall(encode(request))


def _ask(path: Path, request: Request, expected: type[Answer]) -> Answer | None:
    with _socket() as connection:
        return _ask_on(connection, path, request, expected)


def _socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def _ask_on(
    connection: socket.socket, path: Path, request: Request, expected: type[Answer]
) -> Answer | None:
    where = socket_path(path)
    try:
        reply = _exchange(connection, where, encode(request))
    except OSError as error:
        raise ControlError("unreachable", _unreachable(where, error)) from error
    match reply:
        case None:
            return None
        case Refusal(code, reason):
            raise ControlError(code, reason)
        case _ if isinstance(reply, expected):
            return reply
    raise ControlError("bad-reply", f"the agent at {where} answered {reply!r}, out of turn")


def _exchange(connection: socket.socket, where: str, request: bytes) -> AnyReply | None:
    connection.settimeout(TIMEOUT_S)
    try:
        connection.connect(where)
    except (FileNotFoundError, ConnectionRefusedError):
        return None
    with suppress(BrokenPipeError):  # turned away: the reason is there to be read
        connection.sendall(request)
    answer = connection.recv(MAX_REPLY + 1)
    if not answer:
        raise ControlError("unreachable", f"the agent at {where} ended before it answered")
    return decode_reply(answer)


def _unreachable(where: str, error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return f"the agent at {where} did not answer within {TIMEOUT_S:g} s"
    return f"cannot ask the agent at {where}: {error.strerror or error}"
