"""Who is at the other end of the control socket, and how many of them there may be."""

from __future__ import annotations

import errno
import grp
import socket
import struct
from array import array
from collections import Counter
from dataclasses import dataclass

_SO_PEERGROUPS = 59  # Linux 4.13 and later; the socket module has no name for it
_MAX_PEERGROUPS = 1024  # bytes; what getsockopt takes at most


@dataclass(frozen=True, slots=True)
class Peer:
    """A client as the kernel recorded it when it connected; `pid` 0: in no namespace of ours."""

    pid: int
    uid: int
    gids: frozenset[int]

    @classmethod
    def of(cls, connection: socket.socket) -> Peer:
        """Read SO_PEERCRED and SO_PEERGROUPS (unix(7))."""
        size = struct.calcsize("iII")
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        pid, uid, gid = struct.unpack("iII", credentials)
        return cls(pid, uid, frozenset((gid, *_supplementary_groups(connection))))


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


@dataclass(frozen=True, slots=True)
class Limits:
    """What clients may take: seats in all, a user's share, seats kept for root; seconds.

    `idle_s`: between two requests, unless the client has registered a job. `send_s`: to take a
    reply. With the kernel's default buffers a client costs under half a megabyte at the very most.
    """

    clients: int = 2048
    per_user: int = 1024
    kept_for_root: int = 64
    idle_s: float = 60.0
    send_s: float = 5.0


class Seats:
    """Who is connected, by user: nobody can keep all others out, and root always gets in."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._taken: Counter[int] = Counter()

    def refusal(self, uid: int) -> str | None:
        """Why one more client of this user may not stay, or None."""
        limits, all_taken = self._limits, self._taken.total()
        open_to_user = limits.clients - (0 if uid == 0 else limits.kept_for_root)
        if all_taken >= open_to_user:
            return f"{all_taken} clients are connected already; ask later"
        if uid != 0 and self._taken[uid] >= limits.per_user:
            return (
                f"uid {uid} has {limits.per_user} connections already, as many as one user may: "
                "close some"
            )
        return None

    def take(self, uid: int) -> None:
        """One more of this user's clients is connected."""
        self._taken[uid] += 1

    def leave(self, uid: int) -> None:
        """One fewer."""
        self._taken[uid] -= 1
        if not self._taken[uid]:
            del self._taken[uid]
