"""Which of a node's addresses the other ranks are told to connect to."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from contextlib import suppress

from p3.engine import P3Error
from p3.interfaces import addresses_of
from p3.rendezvous import Exchange
from p3.sockets import Address, address_towards
from p3_agent import client


def choose_host(exchange: Exchange, interface: str | None = None) -> str:
    """This node's IP address for the other ranks. Collective.

    That of `interface`, else of the one that the user named for Gloo (GLOO_SOCKET_IFNAME), else
    of the one that the node's agent shapes, else the one on the route to MASTER_ADDR. All ranks
    use IPv4, or all IPv6. Raises P3Error on every rank when that cannot be.

    On the master the route to MASTER_ADDR can lead to a loopback address though the others are
    elsewhere (Debian's 127.0.1.1 for the own name): then the route to one of them tells.
    """
    mine: tuple[str, ...] = ()
    problem = ""
    try:
        mine = _addresses_here(interface)
    except OSError as error:
        problem = str(error)
    offers: list[tuple[str, ...]] = []
    for rank, offer in enumerate(exchange(mine or problem)):
        if not isinstance(offer, tuple):
            raise P3Error(f"rank {rank}: {offer}")
        offers.append(offer)
    family = _common_family(offers)
    host, *_ = _of_family(mine, family)
    outside = [other for offer in offers for other in _of_family(offer, family)]
    outside = [other for other in outside if not _is_loopback(other)]
    if _is_loopback(host) and outside:
        return address_towards(outside[0])
    return host


def _addresses_here(interface: str | None) -> tuple[str, ...]:
    """OSError when there is none."""
    named = interface or os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
    if named:
        return addresses_of(named)
    if (shaped := _shaped_interface()) is not None:
        # The agent may be that of another network namespace, and know other interfaces.
        with suppress(OSError):
            return addresses_of(shaped)
    master = os.environ.get("MASTER_ADDR", "localhost")
    try:
        return (address_towards(master),)
    except OSError as error:
        raise OSError(
            f"finds no route to MASTER_ADDR ({master}): set it to a name or address that every "
            "node can reach"
        ) from error


def _shaped_interface() -> str | None:
    try:
        welcome = client.hello()
    except client.ControlError:  # asking it for its bands tells why
        return None
    return None if welcome is None else welcome.device


def _common_family(offers: Sequence[tuple[str, ...]]) -> socket.AddressFamily:
    """The first that rank 0 offers and all others too."""
    for host in offers[0]:
        family = Address(host, 0).family
        if all(_of_family(offer, family) for offer in offers):
            return family
    listed = "; ".join(f"rank {rank}: {', '.join(offer)}" for rank, offer in enumerate(offers))
    raise P3Error(
        f"the ranks have neither IPv4 nor IPv6 in common ({listed}): choose an interface that has "
        "addresses of one kind on every node"
    )


def _of_family(offer: tuple[str, ...], family: socket.AddressFamily) -> list[str]:
    return [host for host in offer if Address(host, 0).family is family]


def _is_loopback(host: str) -> bool:
    return host.startswith("127.") or host == "::1"
