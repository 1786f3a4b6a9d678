"""Who listens where: every rank tells every other before the engine connects them."""

from __future__ import annotations

import hmac
import os
import secrets
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from p3.engine import P3Error, PlanMismatchError
from p3.sockets import Address, bound_address, listen
from p3_shaper.bands import Band

TOKEN_BYTES = 32
SECRET_VARIABLE = "P3_TOKEN"

Exchange = Callable[[object], list[object]]
"""Give one's own object, get every rank's, in rank order. Collective; blocks."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a rank listens: one port a band. Rank 0's `token` is the job's."""

    host: str
    ports: tuple[int, ...]
    token: bytes

    def address(self, band: int) -> Address:
        """Where the rank listens for `band`."""
        return Address(self.host, self.ports[band])


def job_key(endpoints: Sequence[Endpoint]) -> bytes:
    """What ranks prove to know: made of the job's token and the user's secret, $P3_TOKEN.

    The token came over torch.distributed, which does not encrypt; without a secret whoever can
    read along there knows the key.
    """
    secret = os.environ.get(SECRET_VARIABLE, "").encode("utf-8", "surrogateescape")
    return hmac.digest(secret, b"p3 job key" + endpoints[0].token, "sha256")


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
    try:
        return listeners, _endpoints(exchange(mine), len(bands))
    except P3Error:
        close_all(listeners)
        raise


def _endpoints(everyone: Sequence[object], bands: int) -> list[Endpoint]:
    endpoints: list[Endpoint] = []
    for rank, theirs in enumerate(everyone):
        if not isinstance(theirs, Endpoint):
            raise P3Error(f"rank {rank}: {theirs}")
        if len(theirs.ports) != bands:
            raise PlanMismatchError(
                f"rank {rank} uses {len(theirs.ports)} bands, another rank {bands}: "
                "give every rank the same bands and the same model"
            )
        endpoints.append(theirs)
    return endpoints


def close_all(sockets: Sequence[socket.socket]) -> None:
    """Close them all."""
    for sock in sockets:
        sock.close()
