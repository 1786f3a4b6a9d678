"""Who listens where: every rank tells every other before the engine connects them."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from p3.engine import P3Error, PlanMismatchError
from p3.sockets import Address, address_towards, bound_address, listen
from p3.wire.frames import TOKEN_BYTES
from p3_shaper.bands import Band

Exchange = Callable[[object], list[object]]
"""Give one's own object, get every rank's, in rank order. Collective; blocks."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a rank listens: one port a band. `token` is of use from rank 0 alone."""

    host: str
    ports: tuple[int, ...]
    token: bytes

    def address(self, band: int) -> Address:
        """Where the rank listens for `band`."""
        return Address(self.host, self.ports[band])


def choose_host(exchange: Exchange) -> str:
    """This node's IP address on the route to the other ranks. Collective.

    The route to MASTER_ADDR tells. On the master itself that can be a loopback address though the
    others are elsewhere (Debian's 127.0.1.1 for the own name): then the route to one of them does.
    """
    master = os.environ.get("MASTER_ADDR", "localhost")
    try:
        host = address_towards(master)
    except OSError:
        host = ""
    hosts = [str(other) for other in exchange(host)]
    if "" in hosts:
        raise P3Error(
            f"rank {hosts.index('')} finds no route to MASTER_ADDR ({master}): set it to a name or "
            "address that every node can reach"
        )
    outside = [other for other in hosts if not _is_loopback(other)]
    if _is_loopback(host) and outside:
        return address_towards(outside[0])
    return host


def announce(
    exchange: Exchange, host: str, bands: Sequence[Band], *, port: int
) -> tuple[list[socket.socket], list[Endpoint]]:
    """Listen for `bands` and tell the other ranks where. Collective.

    Port 0 is any free one, else band b of any rank listens at `port` + b. Returns a listener
    a band, and every rank's endpoint. Raises P3Error on every rank when one cannot listen.
    """
    listeners: list[socket.socket] = []
    mine: Endpoint | str
    try:
        for band in bands:
            address = Address(host, port + band.index if port else 0)
            listeners.append(listen(address, band.dscp))
        ports = tuple(bound_address(listener).port for listener in listeners)
        mine = Endpoint(host, ports, secrets.token_bytes(TOKEN_BYTES))
    except OSError as error:
        mine = f"{error}: choose a free port, or 0 for any free one"
    endpoints: list[Endpoint] = []
    for rank, theirs in enumerate(exchange(mine)):
        if not isinstance(theirs, Endpoint):
            close_all(listeners)
            raise P3Error(f"rank {rank}: {theirs}")
        if len(theirs.ports) != len(bands):
            close_all(listeners)
            raise PlanMismatchError(
                f"rank {rank} uses {len(theirs.ports)} bands, another rank {len(bands)}: "
                "give every rank the same bands and the same model"
            )
        endpoints.append(theirs)
    return listeners, endpoints


def close_all(sockets: Sequence[socket.socket]) -> None:
    """Close them all."""
    for sock in sockets:
        sock.close()


def _is_loopback(host: str) -> bool:
    return host.startswith("127.") or host == "::1"
