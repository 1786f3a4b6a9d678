"""Connects every rank to every other, one TCP connection a band, and says HELLO on each.

A rank sends payloads on the connections that it made, and receives them on those that it accepted.
Connecting needs no answer from the other process (its kernel accepts), so nothing can lock up.
"""

from __future__ import annotations

import contextlib
import itertools
import selectors
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from p3.engine import P3Error, PeerLostError, PlanMismatchError
from p3.rendezvous import Endpoint, close_all
from p3.sockets import Address, accept, connect
from p3.wire import (
    HEADER_BYTES,
    Connection,
    ErrorCode,
    ErrorReceived,
    FrameType,
    Hello,
    RemoteError,
    SliceTable,
)
from p3.wire.frames import decode_header
from p3_shaper.bands import Band

ERROR_TYPES: Mapping[ErrorCode, type[P3Error]] = {
    ErrorCode.PEER_LOST: PeerLostError,
    ErrorCode.PLAN: PlanMismatchError,
}
"""What an ERROR frame is for the training side; P3Error for all other codes."""

LINGER_S = 1.0
"""How long a rank that gives up at the start stays, to tell those that connect later."""

_NOT_OURS = frozenset({ErrorCode.PROTOCOL, ErrorCode.PEER_LOST})
"""What a port scanner, or anyone who is no rank, causes before HELLO."""


@dataclass(slots=True)
class Link:
    """One connection with rank `peer` (-1 until its HELLO) at `address`, for `band`.

    Payloads leave on it if `outgoing`, else they come on it.
    """

    sock: socket.socket
    connection: Connection
    band: Band
    address: Address
    outgoing: bool
    peer: int = -1


@dataclass(frozen=True, slots=True)
class Identity:
    """What this rank says in HELLO."""

    rank: int
    token: bytes
    digest: bytes
    settings: str
    slices: SliceTable

    def connection(self, band: Band, peer: int | None = None) -> Connection:
        """A connection that has yet to say HELLO."""
        hello = Hello(self.token, self.digest, self.rank, band.index, self.settings)
        return Connection(hello, self.slices, peer)


def join(
    identity: Identity,
    endpoints: Sequence[Endpoint],
    listeners: Sequence[socket.socket],
    bands: Sequence[Band],
    *,
    timeout: float,
) -> list[Link]:
    """Connect with all other ranks: two links a peer and band. Closes the listeners.

    PlanMismatchError, PeerLostError or P3Error when a rank differs, is away, or does not come
    within `timeout` seconds; the ranks that are connected by then hear of it.
    """
    meeting = _Meeting(identity, len(endpoints), bands, time.monotonic() + timeout)
    try:
        meeting.connect(endpoints)
        meeting.greet_all(listeners)
    except P3Error as error:
        meeting.give_up(error, listeners)
        raise
    finally:
        close_all([*listeners, *(link.sock for link in meeting.greeting)])
        meeting.selector.close()
    return list(meeting.done.values())


Key = tuple[int, int, bool]
"""Peer, band, outgoing."""


@dataclass(slots=True)
class _Meeting:
    identity: Identity
    world_size: int
    bands: Sequence[Band]
    deadline: float
    selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    greeting: list[Link] = field(default_factory=list)
    done: dict[Key, Link] = field(default_factory=dict)
    wanted: set[Key] = field(init=False)

    def __post_init__(self) -> None:
        peers = [peer for peer in range(self.world_size) if peer != self.identity.rank]
        self.wanted = set(itertools.product(peers, range(len(self.bands)), (True, False)))

    def connect(self, endpoints: Sequence[Endpoint]) -> None:
        """Each rank starts with the one after itself, so that not all call the same."""
        for step in range(1, self.world_size):
            peer = (self.identity.rank + step) % self.world_size
            for band in self.bands:
                address = endpoints[peer].address(band.index)
                left = max(0.1, self.deadline - time.monotonic())
                try:
                    sock = connect(address, band.dscp, timeout=left)
                except OSError as error:
                    raise PeerLostError(
                        f"rank {self.identity.rank} does not reach rank {peer}: {error}; "
                        "the nodes must reach each other at the ports of the parameter server"
                    ) from error
                connection = self.identity.connection(band, peer)
                self._start(Link(sock, connection, band, address, True, peer))

    def greet_all(self, listeners: Sequence[socket.socket]) -> None:
        for band, listener in zip(self.bands, listeners, strict=True):
            self.selector.register(listener, selectors.EVENT_READ, band)
        while len(self.done) < len(self.wanted):
            ready = self.selector.select(max(0.0, self.deadline - time.monotonic()))
            if not ready:
                raise PeerLostError(self._missing())
            for key, _ in ready:
                if isinstance(key.data, Link):
                    self._read(key.data)
                elif isinstance(key.fileobj, socket.socket):
                    self._accept(key.fileobj, key.data)

    def give_up(self, error: P3Error, listeners: Sequence[socket.socket]) -> None:
        """Tell every rank why, also those that are yet to connect: they cannot know otherwise."""
        code = next(
            (code for code, kind in ERROR_TYPES.items() if type(error) is kind), ErrorCode.PROTOCOL
        )
        for link in (*self.greeting, *self.done.values()):
            _tell(link.sock, link.connection, code, str(error))
        known = [*self.greeting, *self.done.values()]
        missing = len(self.wanted) // 2 - sum(not link.outgoing for link in known)
        deadline = time.monotonic() + LINGER_S
        with selectors.DefaultSelector() as selector:
            for band, listener in zip(self.bands, listeners, strict=True):
                selector.register(listener, selectors.EVENT_READ, band)
            while missing > 0 and (ready := selector.select(deadline - time.monotonic())):
                for key, _ in ready:
                    with contextlib.suppress(OSError):
                        sock, _ = accept(listeners[key.data.index], key.data.dscp)
                        _tell(sock, self.identity.connection(key.data), code, str(error))
                        missing -= 1

    def _accept(self, listener: socket.socket, band: Band) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionAbortedError):
            sock, address = accept(listener, band.dscp)
            self._start(Link(sock, self.identity.connection(band), band, address, False))

    def _start(self, link: Link) -> None:
        """Say HELLO, which always fits an empty socket, and listen for the other's."""
        self.greeting.append(link)
        with contextlib.suppress(OSError):  # reading tells why
            link.sock.send(link.connection.hello())
        self.selector.register(link.sock, selectors.EVENT_READ, link)

    def _read(self, link: Link) -> None:
        if link in self.done.values():
            self._read_done(link)
            return
        try:
            count = link.sock.recv_into(link.connection.buffers()[0])
            if count == 0:
                link.connection.eof()
            events = link.connection.received(count)
        except BlockingIOError:
            return
        except OSError as error:
            self._refuse(link, ErrorCode.PEER_LOST, f"the connection broke: {error.strerror}")
            return
        except RemoteError as error:
            self._refuse(link, error.code, str(error))
            return
        for event in events:
            if isinstance(event, ErrorReceived):
                raise ERROR_TYPES.get(event.code, P3Error)(event.text)
            self._greeted(link)

    def _greeted(self, link: Link) -> None:
        peer = link.connection.peer
        assert peer is not None
        key = (peer, link.band.index, link.outgoing)
        if key in self.done:
            raise P3Error(
                f"two processes say that they are rank {peer}: {self.done[key].address} and "
                f"{link.address}; give each rank one process"
            )
        link.peer = peer
        self.greeting.remove(link)
        self.done[key] = link

    def _read_done(self, link: Link) -> None:
        """A peer that has said HELLO goes on: with slices, which can wait, or with the end."""
        try:
            head = link.sock.recv(HEADER_BYTES, socket.MSG_PEEK)
        except OSError:
            head = b""
        if not head:
            raise PeerLostError(_lost(link, "it closed the connection at the start"))
        if len(head) < HEADER_BYTES:
            return
        self.selector.unregister(link.sock)
        if decode_header(head).type is FrameType.ERROR:
            self.greeting.append(self.done.pop((link.peer, link.band.index, link.outgoing)))
            self.selector.register(link.sock, selectors.EVENT_READ, link)

    def _refuse(self, link: Link, code: ErrorCode, reason: str) -> None:
        if link.peer < 0 and code in _NOT_OURS:
            self.selector.unregister(link.sock)
            self.greeting.remove(link)
            link.sock.close()
            return
        if code is ErrorCode.PEER_LOST:
            reason = _lost(link, reason)
        raise ERROR_TYPES.get(code, P3Error)(reason)

    def _missing(self) -> str:
        away = sorted({peer for peer, _, _ in self.wanted - self.done.keys()})
        return (
            f"rank {self.identity.rank} still waits for ranks {away}: they did not connect in "
            "time; see their logs, and whether a firewall stands between"
        )


def _tell(sock: socket.socket, connection: Connection, code: ErrorCode, text: str) -> None:
    """Send an ERROR, as far as that is possible at once, and close."""
    with sock, contextlib.suppress(OSError):
        sock.send(connection.error(code, text))
        sock.shutdown(socket.SHUT_WR)
        # With bytes unread, closing would reset the connection before the ERROR is through.
        sock.recv(1 << 16)


def _lost(link: Link, reason: str) -> str:
    return f"rank {link.peer} at {link.address} is lost: {reason}; see its log"
