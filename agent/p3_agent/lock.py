"""One agent an interface: two locks, both dropped by the kernel with the process.

An abstract unix socket lives in a network namespace (unix(7)), as the interface does: whoever is
bound to the interface's name holds it, whatever state directory it uses. Any local user may bind
such a name first, but who is neither root nor an agent's user is no agent: an agent then binds a
name below that one which nobody can foresee, and every agent looks at all of them. The second lock
is a file in the state directory, where such a user may not write; it counts where a stranger fills
an agent's socket, so that it cannot tell whose it is.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import pwd
import re
import secrets
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from p3_agent.errors import AgentError
from p3_shaper.link import Link

log = logging.getLogger(__name__)

SERVICE_USER = "p3-agent"
_ASKED = 4096
_CREDENTIALS = struct.Struct("iII")  # struct ucred: pid, uid, gid
_LOOKS, _BETWEEN_S = 5, 0.02


@contextmanager
def hold(link: Link, directory: Path) -> Iterator[None]:
    """Hold an interface of this process's namespace; AgentError when another agent holds it.

    `directory` is the state directory, made if it is not there.
    """
    name = f"p3-agent/{link.index}"
    with ExitStack() as held:
        is_named = _hold_name(held, name, link)
        try:
            if not _take_file(held, directory, link.index):
                raise AgentError(f"another p3-agent has {link.name}, by {directory}; stop it first")
        except OSError as error:
            if not is_named:
                raise AgentError(
                    f"the name @{name} is taken (`ss -xlp` says by whom), and {directory} cannot "
                    f"be used instead: {error.strerror}; free either, or choose another --state-dir"
                ) from error
        if not is_named:
            log.warning(
                "the name @%s is taken by what is no agent (`ss -xlp` says what): going on", name
            )
        yield


def _hold_name(held: ExitStack, name: str, link: Link) -> bool:
    """Whether `name` itself could be had; AgentError when another agent has it, or one below."""
    own = name
    is_named = _take_name(held, own)
    if not is_named:
        _refuse(_owner(name, _LOOKS), link)
        own = f"{name}/{secrets.token_hex(16)}"
        _take_name(held, own)
    # One's own is there by now: of two that start at once, one at least sees the other.
    for other in _names(name) - {own}:
        _refuse(_owner(other), link)
    return is_named


def _take_name(held: ExitStack, name: str) -> bool:
    holder = held.enter_context(_socket())
    try:
        holder.bind(f"\0{name}")
    except OSError:
        return False
    # Only a listening socket tells who it is. Nobody accepts, so each who asks takes a place.
    holder.listen(_ASKED)
    return True


def _names(name: str) -> set[str]:
    """`name` and those below it, as far as somebody is bound to them."""
    pattern = rf"^.* @({re.escape(name)}(?:/[0-9a-f]+)?)$"
    there = Path("/proc/self/net/unix").read_text("utf-8", "replace")
    return set(re.findall(pattern, there, re.MULTILINE))


def _refuse(owner: tuple[int, int] | None, link: Link) -> None:
    if owner is not None and owner[1] in _agents():
        raise AgentError(
            f"another p3-agent (pid {owner[0]}, uid {owner[1]}) has {link.name}; stop it first"
        )


def _owner(name: str, looks: int = 1) -> tuple[int, int] | None:
    """Pid and uid of who listens; None of who does not, or whose places are all taken."""
    for _ in range(looks):
        with _socket() as caller:
            refusal = caller.connect_ex(f"\0{name}")
            if refusal == 0:
                data = caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
                pid, uid, _ = _CREDENTIALS.unpack(data)
                return pid, uid
        if refusal != errno.ECONNREFUSED:
            return None
        time.sleep(_BETWEEN_S)  # an agent that starts has bound and will listen at once
    return None


def _agents() -> set[int]:
    """The users that an agent may run as: this one's, root, and the service's."""
    try:
        service = {pwd.getpwnam(SERVICE_USER).pw_uid}
    except KeyError:
        service = set()
    return {0, os.geteuid()} | service


def _take_file(held: ExitStack, directory: Path, index: int) -> bool:
    """Whether nobody else holds it; removed at the end. Raises OSError."""
    directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    namespace = Path("/proc/self/ns/net").stat().st_ino
    path = directory / f"{namespace}.{index}.lock"
    while True:
        file = held.enter_context(path.open("ab"))
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        if _is_at(path, file.fileno()):  # else the holder before has just removed it
            held.callback(path.unlink, missing_ok=True)
            return True


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _socket() -> socket.socket:
    kind = socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
    return socket.socket(socket.AF_UNIX, kind)
