"""Listening unix sockets, and accepting from a listener without end."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import socket
import stat
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from p3_agent.errors import AgentError

log = logging.getLogger(__name__)

BACKLOG = 1024
_OWN_FILES = 64  # what an agent has open besides its clients, generously
_PAUSE_S = 0.1


@contextmanager
def unix_listener(path: Path, kind: socket.SocketKind, option: str) -> Iterator[socket.socket]:
    """A bound, listening socket at `path`, removed at the end; clients wait until it is served.

    Makes the folder. A socket that nobody serves any more is replaced. Raises AgentError when
    another process listens there, or the path cannot be used; `option` is where to name another.
    """
    flags = socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
    with socket.socket(socket.AF_UNIX, kind | flags) as listener:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _remove_stale(path, kind, option)
            listener.bind(os.fspath(path))
            path.chmod(0o666)  # all may read; who may write is decided for each request
            listener.listen(BACKLOG)
        except OSError as error:
            raise AgentError(
                f"cannot listen at {path}: {error.strerror or error}; choose another with {option}"
            ) from error
        inode = path.stat().st_ino
        try:
            yield listener
        finally:
            _unlink_own(path, inode)


def _remove_stale(path: Path, kind: socket.SocketKind, option: str) -> None:
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise AgentError(f"{path} is there and is no socket; choose another with {option}")
    with socket.socket(socket.AF_UNIX, kind | socket.SOCK_NONBLOCK) as probe:
        if probe.connect_ex(os.fspath(path)) != errno.ECONNREFUSED:
            raise AgentError(f"something listens at {path} already; stop it, or choose {option}")
    path.unlink(missing_ok=True)


def _unlink_own(path: Path, inode: int) -> None:
    try:
        if path.stat().st_ino == inode:
            path.unlink()
    except FileNotFoundError:
        log.warning("the socket %s was removed by someone else", path)


def room_for(clients: int) -> int:
    """How many of `clients` connections the limit on open files allows, raised where it can be.

    One at the least: what an agent has open itself is fewer files than are set aside for it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = clients + _OWN_FILES
    if soft < wanted:
        soft = min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return min(clients, max(soft - _OWN_FILES, 1))


async def accept(
    listener: socket.socket, converse: Callable[[socket.socket], Awaitable[None]]
) -> None:
    """Converse with every client at once until cancelled; a client's end closes its socket.

    A client that breaks off or is too slow (OSError, TimeoutError) ends its own conversation.
    """
    loop = asyncio.get_running_loop()
    async with asyncio.TaskGroup() as clients:
        while True:
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ECONNABORTED):
                    raise
                log.warning("cannot accept a client: %s", error.strerror)
                await asyncio.sleep(_PAUSE_S)  # the queue stays readable: do not spin on it
                continue
            clients.create_task(_end_alone(connection, converse))
            await asyncio.sleep(0)  # an accept that need not wait does not let others work


async def _end_alone(
    connection: socket.socket, converse: Callable[[socket.socket], Awaitable[None]]
) -> None:
    try:
        with connection:
            await converse(connection)
    except OSError as error:  # among them TimeoutError
        log.debug("client dropped: %r", error)
