"""Exchange among ranks before any framework does it: all connect to rank 0 at MASTER_PORT.

Ranks prove to know $P3_TOKEN (see `star_door`); what they send then is neither encrypted nor
signed. Objects are pickled, and only p3's own few types are unpickled. Every read is bounded, in
bytes and in time.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from p3 import pickles
from p3.engine import Network, P3Error, PeerLostError
from p3.mesh import ERROR_TYPES, code_of
from p3.star_door import (
    GREETING_BYTES,
    HELLO_S,
    PROOF_BYTES,
    VERSION,
    Door,
    Greeting,
    is_proof,
    proof,
    star_key,
)
from p3.wire import ErrorCode

OBJECT_BYTES = 64 << 20
"""The largest object that is read. Plans are compared by digest, so that all are small."""
PIECE_BYTES = 1 << 20
RETRY_S = 0.05

_SIZE = struct.Struct("!Q")


@dataclass(frozen=True, slots=True)
class Place:
    """This process among the ranks, as torchrun says it in the environment."""

    rank: int
    world_size: int
    host: str
    port: int


def place_of(environment: Mapping[str, str]) -> Place:
    """P3Error when a variable is missing or wrong."""
    # torchrun itself listens at MASTER_PORT then.
    taken = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    try:
        place = Place(
            int(environment["RANK"]),
            int(environment["WORLD_SIZE"]),
            environment["MASTER_ADDR"],
            int(environment["MASTER_PORT"]) + taken,
        )
    except (KeyError, ValueError) as error:
        raise P3Error(
            f"{error} in the environment: start every rank with RANK, WORLD_SIZE, MASTER_ADDR and "
            "MASTER_PORT, as scripts/launch-mxnet and torchrun do"
        ) from error
    if not 0 <= place.rank < place.world_size or not 0 < place.port < 1 << 16:
        raise P3Error(
            f"RANK={place.rank}, WORLD_SIZE={place.world_size}, MASTER_PORT={place.port}: ranks "
            "count from 0 to WORLD_SIZE - 1, and a port is 1 to 65535"
        )
    return place


class Star:
    """Collective calls among all ranks, in the same order on each. One thread.

    `key` is what they prove to know ($P3_TOKEN's, if not given).
    Raises PeerLostError when a rank does not come, or went away; P3Error when one cannot be right.
    """

    def __init__(
        self, place: Place, *, timeout: float = Network.timeout, key: bytes | None = None
    ) -> None:
        self._place = place
        self._key = star_key() if key is None else key
        self._timeout = timeout
        self._peers: dict[int, socket.socket] = {}
        deadline = time.monotonic() + timeout
        if place.rank:
            self._peers[0] = self._connect(deadline)
        else:
            self._gather(deadline)

    def exchange(self, mine: object) -> list[object]:
        """Give one's own object, get every rank's, in rank order (see `rendezvous.Exchange`)."""
        if self._place.rank:
            self._send(0, pickle.dumps(mine))
            everyone = self._heard()
            if not isinstance(everyone, list) or len(everyone) != self._place.world_size:
                raise PeerLostError(self._text(0, "it sent something else"))
            return everyone
        peers = range(1, self._place.world_size)
        try:
            gathered = [mine, *(pickles.load(self._receive(peer)) for peer in peers)]
        except P3Error as error:
            self._tell_all(error)
            raise
        answer = pickle.dumps(gathered)
        for peer in peers:
            self._send(peer, answer)
        return gathered

    def broadcast(self, memory: memoryview) -> None:
        """Rank 0's bytes for all; `memory` is as large on every rank, and written on the others."""
        if self._place.rank:
            with self._explained(0):
                _receive_into(self._peers[0], memory)
            return
        memory = memory.cast("B")
        # To all in turns: the timeout is for each piece, and nobody waits for the others' wholes.
        for start in range(0, len(memory), PIECE_BYTES):
            for peer in self._peers:
                with self._explained(peer):
                    self._peers[peer].sendall(memory[start:][:PIECE_BYTES])

    def close(self) -> None:
        """Close the connections. Again is harmless."""
        for sock in self._peers.values():
            sock.close()
        self._peers.clear()

    def _connect(self, deadline: float) -> socket.socket:
        place = self._place
        while True:
            try:
                sock = _connection(place.host, place.port, self._timeout)
            except OSError as error:
                # Rank 0 may yet be to start.
                if time.monotonic() > deadline:
                    raise PeerLostError(
                        f"rank {place.rank} finds no rank 0 at MASTER_ADDR {place.host}, "
                        f"MASTER_PORT {place.port}: {error}; see rank 0's log, and whether a "
                        "firewall stands between"
                    ) from error
                time.sleep(RETRY_S)
            else:
                return self._enter(sock)

    def _enter(self, sock: socket.socket) -> socket.socket:
        """Prove, have rank 0 prove, and wait until all are there."""
        self._peers[0] = sock
        # Rank 0 tells, as soon as it gives up, why.
        sock.settimeout(self._timeout + HELLO_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self._prove(sock)
            self._heard()
        except P3Error:
            self.close()
            raise
        sock.settimeout(self._timeout)
        return sock

    def _prove(self, sock: socket.socket) -> None:
        mine = Greeting.of(self._place.rank, self._place.world_size)
        with self._explained(0):
            sock.sendall(mine.encode())
            try:
                theirs = Greeting.decode(_received(sock, GREETING_BYTES))
            except ValueError as error:
                raise P3Error(
                    f"no rank 0 of P3 is at MASTER_ADDR {self._place.host}, MASTER_PORT "
                    f"{self._place.port}: {error}; choose a port that is free there"
                ) from error
        if theirs.version != VERSION:
            raise P3Error(
                f"rank 0 speaks protocol version {theirs.version}, rank {self._place.rank} "
                f"{VERSION}: install the same release of P3 on all nodes"
            )
        said = b""
        with contextlib.suppress(OSError):
            sock.sendall(proof(self._key, mine, theirs))
            said = _received(sock, PROOF_BYTES)
        if not is_proof(self._key, said, theirs, mine):
            raise P3Error(
                f"rank 0 and rank {self._place.rank} do not prove the same P3_TOKEN to each other: "
                "give all ranks of a job the same, or none, and each job a port of its own"
            )

    def _gather(self, deadline: float) -> None:
        place = self._place
        if place.world_size == 1:
            return
        try:
            family, *_, address = socket.getaddrinfo(
                place.host, place.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            listener = socket.create_server(address[:2], family=family, backlog=place.world_size)
        except OSError as error:
            raise P3Error(
                f"rank 0 cannot listen at MASTER_ADDR {place.host}, MASTER_PORT {place.port}: "
                f"{error}; choose an address of rank 0's node and a free port"
            ) from error
        with listener:
            door = Door(listener, place.world_size, self._key)
            reason: P3Error | None = None
            try:
                door.gather(deadline)
            except P3Error as error:
                reason = error
            finally:
                door.close()
        self._peers = door.inside
        for sock in self._peers.values():
            sock.settimeout(self._timeout)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        missing = sorted(set(range(1, place.world_size)) - self._peers.keys())
        if missing and reason is None:
            refused = f" (turned away: {door.turned_away})" if door.turned_away else ""
            reason = PeerLostError(
                f"rank 0 still waits for ranks {missing}: they did not come within "
                f"{self._timeout:g} s{refused}; see their logs"
            )
        if reason is not None:
            self._tell_all(reason)
            self.close()
            raise reason
        for peer in self._peers:
            self._send(peer, pickle.dumps(None))

    def _tell_all(self, error: P3Error) -> None:
        """Have the other ranks raise `error` too."""
        said = pickle.dumps((int(code_of(error)), str(error)))
        for peer in self._peers:
            with contextlib.suppress(P3Error):  # that one may be the cause
                self._send(peer, said)

    def _heard(self) -> object:
        """What rank 0 says; raises what it tells all to."""
        said = pickles.load(self._receive(0))
        match said:
            case (int(code), str(text)):
                raise ERROR_TYPES.get(ErrorCode(code), P3Error)(text)
        return said

    def _send(self, peer: int, content: bytes) -> None:
        with self._explained(peer):
            self._peers[peer].sendall(_SIZE.pack(len(content)) + content)

    def _receive(self, peer: int) -> bytearray:
        with self._explained(peer):
            head = bytearray(_SIZE.size)
            _receive_into(self._peers[peer], memoryview(head))
            (size,) = _SIZE.unpack(head)
            if size > OBJECT_BYTES:
                raise OSError(f"it announces {size} bytes, more than {OBJECT_BYTES}")
            content = bytearray(size)
            _receive_into(self._peers[peer], memoryview(content))
            return content

    @contextmanager
    def _explained(self, peer: int) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise PeerLostError(self._text(peer, str(error))) from error

    def _text(self, peer: int, reason: str) -> str:
        return f"rank {self._place.rank}: rank {peer} is lost at the start: {reason}; see its log"


def _connection(host: str, port: int, timeout: float) -> socket.socket:
    """To whoever listens; OSError when nobody does."""
    sock = socket.create_connection((host, port), timeout=timeout)
    if sock.getsockname() == sock.getpeername():
        # TCP can meet itself where nobody listens yet at a port that the kernel chooses from. An
        # abort leaves nothing behind, else rank 0 could not listen there for a minute.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
        raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
    return sock


def _received(sock: socket.socket, count: int) -> bytes:
    """`count` bytes; OSError when the peer ends before."""
    content = bytearray(count)
    _receive_into(sock, memoryview(content))
    return bytes(content)


def _receive_into(sock: socket.socket, memory: memoryview) -> None:
    """Fill `memory`; OSError when the peer ends before."""
    memory = memory.cast("B")
    while memory:
        count = sock.recv_into(memory[:PIECE_BYTES])
        if count == 0:
            raise ConnectionError("it closed the connection")
        memory = memory[count:]
