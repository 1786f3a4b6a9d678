"""One agent an interface: a lock that no choice of state directory goes around.

An abstract unix socket lives in a network namespace (unix(7)), as the interface does: whoever is
bound to the interface's name holds it. The kernel drops it with the process, however that ends.
Any local user may bind such a name and so keep an agent from starting; the refusal says who.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from p3_agent.errors import AgentError
from p3_shaper.link import Link

_ASKED = 4096
_CREDENTIALS = struct.Struct("iII")  # struct ucred: pid, uid, gid


@contextmanager
def hold(link: Link) -> Iterator[None]:
    """Hold an interface of this process's namespace; AgentError when another process holds it."""
    address = f"\0p3-agent/{link.index}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as holder:
        try:
            holder.bind(address)
        except OSError as error:
            raise AgentError(
                f"another p3-agent ({_owner(address)}) has {link.name}; stop it first"
            ) from error
        # Only a listening socket tells who it is. Nobody accepts, so each who asks takes a place.
        holder.listen(_ASKED)
        yield


def _owner(address: str) -> str:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as caller:
        if caller.connect_ex(address) != 0:
            return "`ss -xlp` names its pid"
        data = caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(data)
    return f"pid {pid}, uid {uid}"
