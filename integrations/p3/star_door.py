"""Who may come to rank 0 of a star: both ends prove that they know the job's key. Blocks.

| sent | bytes | by |
| --- | --- | --- |
| greeting | `p3 star`, version, rank, world size, 32 random bytes | who comes, then rank 0 |
| proof | HMAC-SHA256 of both greetings, the prover's first | who comes, then rank 0 |

The key never travels. Strangers may be silent: all who come are heard at once.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import selectors
import socket
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from p3.engine import P3Error
from p3.rendezvous import SECRET_VARIABLE

VERSION = 2
NONCE_BYTES = 32
PROOF_BYTES = 32
HELLO_S = 5.0
"""How long whoever comes may take to greet and prove."""
LINGER_S = 1.0
"""How long others may still come, to hear why there is no job, once that is known."""
MOST_UNPROVEN = 256
"""Of them at a time; more wait in the kernel."""

_GREETING = struct.Struct(f"!7sBII{NONCE_BYTES}s")
_MAGIC = b"p3 star"
GREETING_BYTES = _GREETING.size


@dataclass(frozen=True, slots=True)
class Greeting:
    """What an end says first."""

    version: int
    rank: int
    world_size: int
    nonce: bytes

    @staticmethod
    def of(rank: int, world_size: int) -> Greeting:
        """A new one."""
        return Greeting(VERSION, rank, world_size, secrets.token_bytes(NONCE_BYTES))

    def encode(self) -> bytes:
        """Bytes on the wire."""
        return _GREETING.pack(_MAGIC, self.version, self.rank, self.world_size, self.nonce)

    @staticmethod
    def decode(data: bytes) -> Greeting:
        """ValueError when it is none."""
        magic, *fields = _GREETING.unpack(data)
        if magic != _MAGIC:
            raise ValueError(f"it says {magic!r}")
        return Greeting(*fields)


def star_key(environment: Mapping[str, str] = os.environ) -> bytes:
    """What ranks prove to know: made of $P3_TOKEN; without it, what every p3 knows."""
    secret = environment.get(SECRET_VARIABLE, "").encode("utf-8", "surrogateescape")
    return hmac.digest(secret, b"p3 star", "sha256")


def proof(key: bytes, prover: Greeting, verifier: Greeting) -> bytes:
    """32 bytes. Good for these greetings and this direction alone: ranks differ."""
    return hmac.digest(key, prover.encode() + verifier.encode(), "sha256")


def is_proof(key: bytes, said: bytes, prover: Greeting, verifier: Greeting) -> bool:
    """Whether `prover` knows the key."""
    return hmac.compare_digest(said, proof(key, prover, verifier))


@dataclass(slots=True, eq=False)
class _Comer:
    """One who came: reads a greeting, then a proof."""

    sock: socket.socket
    until: float
    mine: Greeting
    theirs: Greeting | None = None
    said: bytearray = field(default_factory=bytearray)

    @property
    def wanted(self) -> int:
        return GREETING_BYTES if self.theirs is None else PROOF_BYTES


class Door:
    """Lets ranks 1 to `world_size` - 1 in, each once, at `listener`."""

    def __init__(self, listener: socket.socket, world_size: int, key: bytes) -> None:
        self._listener = listener
        self._world_size = world_size
        self._key = key
        self._comers: set[_Comer] = set()
        self._selector = selectors.DefaultSelector()
        self._listening = False
        listener.setblocking(False)
        self.inside: dict[int, socket.socket] = {}
        self.turned_away = ""
        self._problem = ""
        self._known_since = 0.0

    def gather(self, deadline: float) -> None:
        """Until all are inside, or the time has come. P3Error when the ranks cannot be right."""
        while len(self.inside) < self._world_size - 1 and time.monotonic() < deadline:
            if self._problem:
                deadline = min(deadline, self._known_since + LINGER_S)
            until = min([deadline, *(comer.until for comer in self._comers)])
            self._listen(len(self._comers) < MOST_UNPROVEN)
            for key, _ in self._selector.select(max(0.0, until - time.monotonic())):
                if isinstance(key.data, _Comer):
                    self._hear(key.data)
                else:
                    self._answer()
            for comer in [one for one in self._comers if one.until <= time.monotonic()]:
                self._turn_away(comer, "it did not prove the job's token in time")
        if self._problem:
            raise P3Error(self._problem)

    def close(self) -> None:
        """Send those away that have not proven."""
        for comer in list(self._comers):
            self._drop(comer)
        self._selector.close()

    def _listen(self, wanted: bool) -> None:
        if wanted and not self._listening:
            self._selector.register(self._listener, selectors.EVENT_READ)
        elif self._listening and not wanted:
            self._selector.unregister(self._listener)
        self._listening = wanted

    def _answer(self) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionAbortedError):
            sock, _ = self._listener.accept()
            sock.setblocking(False)
            mine = Greeting.of(0, self._world_size)
            comer = _Comer(sock, time.monotonic() + HELLO_S, mine)
            self._comers.add(comer)
            self._selector.register(sock, selectors.EVENT_READ, comer)

    def _hear(self, comer: _Comer) -> None:
        try:
            said = comer.sock.recv(comer.wanted - len(comer.said))
        except BlockingIOError:
            return
        except OSError as error:
            self._turn_away(comer, str(error))
            return
        comer.said += said
        if not said:
            self._turn_away(comer, "it closed the connection")
        elif len(comer.said) == comer.wanted:
            whole, comer.said = bytes(comer.said), bytearray()
            try:
                if comer.theirs is None:
                    self._on_greeting(comer, whole)
                else:
                    self._on_proof(comer, comer.theirs, whole)
            except (ValueError, OSError) as error:
                self._turn_away(comer, str(error))

    def _on_greeting(self, comer: _Comer, said: bytes) -> None:
        """ValueError when it is no rank's."""
        comer.theirs = theirs = Greeting.decode(said)
        comer.sock.send(comer.mine.encode())
        if theirs.version != VERSION:
            raise ValueError(f"protocol version {theirs.version}, here {VERSION}")

    def _on_proof(self, comer: _Comer, theirs: Greeting, said: bytes) -> None:
        """ValueError when it proves nothing."""
        if not is_proof(self._key, said, theirs, comer.mine):
            raise ValueError(f"it does not prove {SECRET_VARIABLE}")
        comer.sock.send(proof(self._key, comer.mine, theirs))
        self._selector.unregister(comer.sock)
        self._comers.remove(comer)
        problem = self._problem_with(theirs)
        # All are to hear of it, those that cannot be among them.
        self.inside[-1 - len(self.inside) if problem else theirs.rank] = comer.sock
        if problem and not self._problem:
            self._problem, self._known_since = problem, time.monotonic()

    def _problem_with(self, theirs: Greeting) -> str:
        """Why a rank that says so cannot be one of these, if that is so."""
        rank, world_size = theirs.rank, theirs.world_size
        if world_size != self._world_size or not 0 < rank < world_size:
            return (
                f"rank {rank} has WORLD_SIZE={world_size}, rank 0 {self._world_size}: give every "
                "rank the same, and each a RANK of its own below it"
            )
        if rank in self.inside:
            return f"two processes say that they are rank {rank}: give each its own RANK"
        return ""

    def _turn_away(self, comer: _Comer, reason: str) -> None:
        self.turned_away = reason
        self._drop(comer)

    def _drop(self, comer: _Comer) -> None:
        self._selector.unregister(comer.sock)
        self._comers.remove(comer)
        comer.sock.close()
