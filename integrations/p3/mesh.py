"""Connects every rank to every other, one TCP connection a band they need; each proves the key.

A rank sends payloads on the connections that it made, and receives them on those that it accepted.
Anyone can connect: until its proof, what comes on an accepted connection ends this connection at
most. What goes wrong on one that this rank made, to where the other is known to listen, ends all.
"""

from __future__ import annotations

import contextlib
import secrets
import selectors
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from p3.engine import P3Error, PeerLostError, PlanMismatchError
from p3.rendezvous import Endpoint, close_all
from p3.sockets import Address, accept, finish_connect, limit_silence, start_connect
from p3.wire import (
    HEADER_BYTES,
    Connection,
    ErrorCode,
    ErrorReceived,
    Event,
    FrameType,
    Hello,
    HelloReceived,
    PeerProven,
    RemoteError,
    SliceTable,
    State,
)
from p3.wire.frames import NONCE_BYTES, decode_header
from p3_shaper.bands import Band

ERROR_TYPES: Mapping[ErrorCode, type[P3Error]] = {
    ErrorCode.PEER_LOST: PeerLostError,
    ErrorCode.PLAN: PlanMismatchError,
}
"""What an ERROR frame is for the training side; P3Error for all other codes."""


def code_of(error: P3Error) -> ErrorCode:
    """The code with which `error` is told to other ranks."""
    kinds = {kind: code for code, kind in ERROR_TYPES.items()}
    return kinds.get(type(error), ErrorCode.INTERNAL)


LINGER_S = 1.0
"""How long a rank that gives up at the start stays, to tell those that connect later."""

GRACE_S = 0.5
"""A rank that gives up because of another one closes its connections as well; its ERROR, which
names the culprit, may be on a connection not yet looked at."""

STRANGERS = 64
"""Connections that may wait to be proven beyond those of the ranks; more wait in the kernel."""

PATIENCE = 1 / 3
"""The part of the timeout within which who connected must have proven the key."""


@dataclass(slots=True, eq=False)
class Link:
    """One connection with rank `peer` (-1 until its PROOF) at `address`, for `band`.

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
    """What this rank says in HELLO, and the key that it proves to know."""

    rank: int
    key: bytes
    digest: bytes
    settings: str
    slices: SliceTable

    def connection(self, band: Band, peer: int | None = None) -> Connection:
        """A connection that has yet to say HELLO."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        hello = Hello(nonce, self.digest, self.rank, band.index, self.settings)
        return Connection(hello, self.key, self.slices, peer)


def join(
    identity: Identity,
    endpoints: Sequence[Endpoint],
    listeners: Sequence[socket.socket],
    bands: Sequence[Band],
    *,
    timeout: float,
    bands_with: Callable[[int], Collection[int]] | None = None,
) -> list[Link]:
    """Connect with all other ranks: two links a peer and band. Closes the listeners.

    `bands_with(peer)` are the bands that there is something to send in to or from `peer`, 0 among
    them for signs of life: the same at both ends. All of `bands` if not given.

    PlanMismatchError, PeerLostError or P3Error when a rank differs, is away, or does not come
    within `timeout` seconds; the ranks that are connected by then hear of it.
    """
    peers = [peer for peer in range(len(endpoints)) if peer != identity.rank]
    needed: dict[int, Sequence[int]] = {
        peer: range(len(bands)) if bands_with is None else sorted(bands_with(peer))
        for peer in peers
    }
    meeting = _Meeting(identity, len(endpoints), bands, needed, listeners, timeout)
    try:
        meeting.connect(endpoints)
        meeting.greet_all()
    except P3Error as error:
        meeting.give_up(error)
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
    needed: Mapping[int, Sequence[int]]  # peer → bands
    listeners: Sequence[socket.socket]
    timeout: float
    deadline: float = field(init=False)
    selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    greeting: set[Link] = field(default_factory=set)
    unproven: dict[Link, float] = field(default_factory=dict)  # accepted → until when it may be so
    done: dict[Key, Link] = field(default_factory=dict)
    wanted: set[Key] = field(init=False)
    accepting: bool = False
    turned_away: str = ""
    lost: PeerLostError | None = None
    farewell: tuple[ErrorCode, str] | None = None
    told: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.deadline = time.monotonic() + self.timeout
        self.wanted = {
            (peer, band, outgoing)
            for peer, bands in self.needed.items()
            for band in bands
            for outgoing in (True, False)
        }

    def connect(self, endpoints: Sequence[Endpoint]) -> None:
        """Each rank starts with the one after itself, so that not all call the same."""
        for step in range(1, self.world_size):
            peer = (self.identity.rank + step) % self.world_size
            for band in map(self.bands.__getitem__, self.needed[peer]):
                address = endpoints[peer].address(band.index)
                try:
                    sock = start_connect(address, band.dscp)
                except OSError as error:
                    self._lose(self._unreachable(peer, error))
                    continue
                connection = self.identity.connection(band, peer)
                link = Link(sock, connection, band, address, True, peer)
                self.greeting.add(link)
                self.selector.register(sock, selectors.EVENT_WRITE, link)

    def greet_all(self) -> None:
        self._accept_more()
        while self.lost is not None or len(self.done) < len(self.wanted):
            if time.monotonic() >= self.deadline:
                raise self.lost or PeerLostError(self._missing())
            self._turn(self.deadline)

    def give_up(self, error: P3Error) -> None:
        """Tell every rank why, also those that are yet to connect: they cannot know otherwise."""
        self.farewell = code_of(error), str(error)
        for link in (*self.greeting, *self.done.values()):
            if link.connection.ours is State.OPEN:
                self._tell(link)
        deadline = time.monotonic() + LINGER_S
        while len(self.told) < self.world_size - 1 and time.monotonic() < deadline:
            # The first reason is the one that counts.
            with contextlib.suppress(P3Error):
                self._turn(deadline)

    def _turn(self, until: float) -> None:
        first = next(iter(self.unproven.values()), until)
        wait = min(until, first) - time.monotonic()
        for key, _ in self.selector.select(max(0.0, wait)):
            if isinstance(key.data, Link):
                self._on_ready(key.data)
            elif isinstance(key.fileobj, socket.socket):
                self._accept(key.fileobj, key.data)
        self._turn_away_the_slow()
        self._accept_more()

    def _on_ready(self, link: Link) -> None:
        if link.sock.fileno() < 0:  # closed for what another one said in this turn
            return
        if link in self.greeting:
            connecting = link.connection.ours is State.GREETING
            self._on_connected(link) if connecting else self._read(link)
        else:
            self._read_done(link)

    # Who connects

    def _accept_more(self) -> None:
        """Listen while there is room for strangers, else let them wait in the kernel."""
        room = len(self.unproven) < len(self.wanted) // 2 + STRANGERS
        if room and not self.accepting:
            for band, listener in zip(self.bands, self.listeners, strict=True):
                self.selector.register(listener, selectors.EVENT_READ, band)
        elif self.accepting and not room:
            for listener in self.listeners:
                self.selector.unregister(listener)
        self.accepting = room

    def _accept(self, listener: socket.socket, band: Band) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionAbortedError):
            sock, address = accept(listener, band.dscp)
            link = Link(sock, self.identity.connection(band), band, address, False)
            self.greeting.add(link)
            self.unproven[link] = time.monotonic() + self.timeout * PATIENCE
            self._greet(link)

    def _turn_away_the_slow(self) -> None:
        now = time.monotonic()
        for link in [link for link, until in self.unproven.items() if until <= now]:
            self._turn_away(link, "it did not prove the job's token in time")

    def _turn_away(self, link: Link, reason: str) -> None:
        self.turned_away = f"{link.address}: {reason}"
        self._drop(link)

    # Handshakes

    def _on_connected(self, link: Link) -> None:
        try:
            finish_connect(link.sock, link.address)
        except OSError as error:
            self._drop(link)
            self._lose(self._unreachable(link.peer, error))
            return
        self.selector.unregister(link.sock)
        self._greet(link)

    def _greet(self, link: Link) -> None:
        limit_silence(link.sock, self.timeout)
        self._send(link, link.connection.hello())
        self.selector.register(link.sock, selectors.EVENT_READ, link)

    def _send(self, link: Link, frame: bytes) -> None:
        """All that a handshake sends fits an empty socket's buffer."""
        with contextlib.suppress(OSError):  # reading tells why
            link.sock.send(frame)

    def _read(self, link: Link) -> None:
        try:
            count = link.sock.recv_into(link.connection.buffers()[0])
            if count == 0:
                link.connection.eof()
            events = link.connection.received(count)
        except BlockingIOError:
            return
        except OSError as error:
            self._on_broken(link, ErrorCode.PEER_LOST, f"the connection broke: {error.strerror}")
            return
        except RemoteError as error:
            self._on_broken(link, error.code, str(error))
            return
        for event in events:
            self._on_event(link, event)

    def _on_event(self, link: Link, event: Event) -> None:
        match event:
            case HelloReceived():
                self._send(link, link.connection.proof())
                if self.farewell is not None:
                    self._tell(link)
            case PeerProven():
                self._on_proven(link)
            case ErrorReceived(code, text):
                raise ERROR_TYPES.get(code, P3Error)(text)

    def _on_proven(self, link: Link) -> None:
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
        self.unproven.pop(link, None)
        self.done[key] = link

    def _read_done(self, link: Link) -> None:
        """A proven peer goes on: with signs of life, the end, or slices, which can wait."""
        try:
            head = link.sock.recv(HEADER_BYTES, socket.MSG_PEEK)
        except OSError:
            head = b""
        if not head:
            self.selector.unregister(link.sock)
            self._lose(PeerLostError(_lost(link, "it closed the connection at the start")))
            return
        if len(head) < HEADER_BYTES:
            return
        try:
            can_wait = decode_header(head).type not in (FrameType.ERROR, FrameType.PING)
        except RemoteError:
            can_wait = False
        if can_wait:
            self.selector.unregister(link.sock)
        else:
            self._read(link)

    # Ends

    def _on_broken(self, link: Link, code: ErrorCode, reason: str) -> None:
        proven = link.peer >= 0 or code is ErrorCode.PLAN
        if not proven:
            self._turn_away(link, reason)
            return
        if link in self.greeting and code is not ErrorCode.PLAN:  # that peer is to hear why
            self._drop(link)
        if code is ErrorCode.PEER_LOST:
            self._lose(PeerLostError(_lost(link, reason)))
            return
        raise ERROR_TYPES.get(code, P3Error)(reason)

    def _lose(self, error: PeerLostError) -> None:
        """Give up soon, unless someone says in the meantime what it is about."""
        if self.lost is None:
            self.lost = error
            self.deadline = min(self.deadline, time.monotonic() + GRACE_S)

    def _drop(self, link: Link) -> None:
        self.selector.unregister(link.sock)
        self.greeting.remove(link)
        self.unproven.pop(link, None)
        link.sock.close()

    def _tell(self, link: Link) -> None:
        """Send an ERROR, as far as that is possible at once, and close."""
        assert self.farewell is not None
        with contextlib.suppress(KeyError):
            self.selector.unregister(link.sock)
        with link.sock, contextlib.suppress(OSError):
            link.sock.send(link.connection.error(*self.farewell))
            link.sock.shutdown(socket.SHUT_WR)
            # With bytes unread, closing would reset the connection before the ERROR is through.
            link.sock.recv(1 << 16)
        self.greeting.discard(link)
        self.unproven.pop(link, None)
        if link.connection.peer is not None:
            self.told.add(link.connection.peer)

    def _unreachable(self, peer: int, error: OSError) -> PeerLostError:
        return PeerLostError(
            f"rank {self.identity.rank} does not reach rank {peer}: {error}; "
            "the nodes must reach each other at the ports of the parameter server"
        )

    def _missing(self) -> str:
        away = sorted({peer for peer, _, _ in self.wanted - self.done.keys()})
        refused = f" (turned away: {self.turned_away})" if self.turned_away else ""
        return (
            f"rank {self.identity.rank} still waits for ranks {away}: they did not connect within "
            f"{self.timeout:g} s{refused}; see their logs, and whether a firewall stands between"
        )


def _lost(link: Link, reason: str) -> str:
    return f"rank {link.peer} at {link.address} is lost: {reason}; see its log"
