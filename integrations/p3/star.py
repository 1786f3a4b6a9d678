"""Exchange among ranks before any framework does it: all connect to rank 0 at MASTER_PORT.

The job trusts its network as torch.distributed does, but for code: objects are pickled, and only
p3's own few types are unpickled. Every read is bounded, in bytes and in time.
"""

from __future__ import annotations

import pickle
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from p3 import pickles
from p3.engine import P3Error, PeerLostError

OBJECT_BYTES = 64 << 20
"""The largest object that is read. Plans are compared by digest, so that all are small."""
PIECE_BYTES = 1 << 20
WAIT_S = 60.0
"""How long ranks wait for each other."""
HELLO_S = 5.0
"""How long whoever connects may take to say who it is; the others wait meanwhile."""
RETRY_S = 0.05

_HELLO = struct.Struct("!8sI")
_MAGIC = b"p3 star\n"
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

    Raises PeerLostError when a rank does not come, or went away.
    """

    def __init__(self, place: Place, *, timeout: float = WAIT_S) -> None:
        self._place = place
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
            everyone = pickles.load(self._receive(0))
            if not isinstance(everyone, list) or len(everyone) != self._place.world_size:
                raise PeerLostError(self._text(0, "it sent something else"))
            return everyone
        peers = range(1, self._place.world_size)
        gathered = [mine, *(pickles.load(self._receive(peer)) for peer in peers)]
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
        for peer in self._peers:
            with self._explained(peer):
                self._peers[peer].sendall(memory)

    def close(self) -> None:
        """Close the connections. Again is harmless."""
        for sock in self._peers.values():
            sock.close()
        self._peers.clear()

    def _connect(self, deadline: float) -> socket.socket:
        place = self._place
        while True:
            try:
                sock = socket.create_connection((place.host, place.port), timeout=self._timeout)
                sock.settimeout(self._timeout)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.sendall(_HELLO.pack(_MAGIC, place.rank))
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
                return sock

    def _gather(self, deadline: float) -> None:
        place = self._place
        wanted = place.world_size - 1
        if not wanted:
            return
        try:
            family, *_, address = socket.getaddrinfo(
                place.host, place.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            listener = socket.create_server(address[:2], family=family, backlog=wanted)
        except OSError as error:
            raise P3Error(
                f"rank 0 cannot listen at MASTER_ADDR {place.host}, MASTER_PORT {place.port}: "
                f"{error}; choose an address of rank 0's node and a free port"
            ) from error
        with listener:
            while len(self._peers) < wanted:
                listener.settimeout(max(0.01, deadline - time.monotonic()))
                try:
                    sock, _ = listener.accept()
                except TimeoutError as error:
                    missing = sorted(set(range(1, place.world_size)) - self._peers.keys())
                    self.close()
                    raise PeerLostError(
                        f"rank 0 still waits for ranks {missing}: they did not come within "
                        f"{self._timeout:g} s; see their logs"
                    ) from error
                self._greet(sock)

    def _greet(self, sock: socket.socket) -> None:
        """Take a rank in; whoever says something else is no rank."""
        sock.settimeout(min(HELLO_S, self._timeout))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        hello = bytearray(_HELLO.size)
        try:
            _receive_into(sock, memoryview(hello))
        except OSError:
            sock.close()
            return
        magic, rank = _HELLO.unpack(hello)
        if magic != _MAGIC or not 0 < rank < self._place.world_size:
            sock.close()
        elif rank in self._peers:
            sock.close()
            self.close()
            raise P3Error(f"two processes say that they are rank {rank}: give each its own RANK")
        else:
            sock.settimeout(self._timeout)
            self._peers[rank] = sock

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


def _receive_into(sock: socket.socket, memory: memoryview) -> None:
    """Fill `memory`; OSError when the peer ends before."""
    memory = memory.cast("B")
    while memory:
        count = sock.recv_into(memory[:PIECE_BYTES])
        if count == 0:
            raise ConnectionError("it closed the connection")
        memory = memory[count:]
