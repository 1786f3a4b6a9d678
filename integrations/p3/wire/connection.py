"""One connection of the slice protocol, without I/O.

The owner of the socket asks `buffers()` where the next bytes go, reads into them, and tells
`received(count)`, which answers with what happened. Payloads go where the owner `place`d them,
with no copy between. The other direction: `hello()`, `proof()`, `payload()`, `ping()`, `bye()` and
`error()` give the bytes to send (for a payload: its header; the payload itself follows).
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from p3.wire.errors import ErrorCode, LocalError, RemoteError
from p3.wire.frames import (
    HEADER_BYTES,
    MAX_BODY_BYTES,
    NOTES,
    ON_REQUEST,
    PAYLOADS,
    FrameType,
    Header,
    Hello,
    decode_error,
    decode_header,
    decode_hello,
    encode_error,
    encode_proof,
)


class State(Enum):
    """How far one direction of a connection is."""

    GREETING = auto()
    PROVING = auto()
    OPEN = auto()
    CLOSED = auto()
    FAILED = auto()


ANSWERING = {
    (State.GREETING, FrameType.HELLO): State.PROVING,
    (State.PROVING, FrameType.PROOF): State.OPEN,
    (State.OPEN, FrameType.PING): State.OPEN,
    (State.OPEN, FrameType.BYE): State.CLOSED,
    (State.OPEN, FrameType.ERROR): State.FAILED,
}
"""What the end that accepted may send, and when; what is not here is refused.

Without a PROOF not even an ERROR is believed: anyone can connect.
"""

SENDING = {
    **ANSWERING,
    **{(State.OPEN, kind): State.OPEN for kind in PAYLOADS | NOTES},
}
"""What the end that connected may send, and when."""


@dataclass(frozen=True, slots=True)
class SliceTable:
    """What payloads there are: slice i has `sizes[i]` bytes and is summed by rank `servers[i]`.

    Its sum has `sum_sizes[i]` bytes where these are given.

    `states[i]` is the most bytes that the optimizer's state of slice i may have; empty where
    servers do not update.
    """

    sizes: Sequence[int]
    servers: Sequence[int]
    world_size: int
    states: Sequence[int] = ()
    sum_sizes: Sequence[int] = ()

    def size(self, kind: FrameType, index: int) -> int:
        """Bytes of a PUSH or SUM of slice `index`."""
        return (self.sum_sizes or self.sizes)[index] if kind is FrameType.SUM else self.sizes[index]


@dataclass(frozen=True, slots=True)
class HelloReceived:
    """The peer says who it is: answer its challenge with `proof()`."""

    hello: Hello


@dataclass(frozen=True, slots=True)
class PeerProven:
    """The peer is who it said that it is, and has the same slices and settings."""


@dataclass(frozen=True, slots=True)
class PingReceived:
    """The peer runs."""


@dataclass(frozen=True, slots=True)
class PayloadStarts:
    """A PUSH or SUM begins: `place` a buffer of its slice's size before reading on."""

    type: FrameType
    index: int
    iteration: int


@dataclass(frozen=True, slots=True)
class PayloadEnds:
    """The buffer that was placed is full."""

    type: FrameType
    index: int
    iteration: int


@dataclass(frozen=True, slots=True)
class NoteReceived:
    """One of `NOTES`."""

    type: FrameType
    index: int
    iteration: int
    body: memoryview


@dataclass(frozen=True, slots=True)
class ByeReceived:
    """The peer sends nothing more on this connection, on purpose."""


@dataclass(frozen=True, slots=True)
class ErrorReceived:
    """The peer gave up, and why."""

    code: ErrorCode
    text: str


Event = (
    HelloReceived
    | PeerProven
    | PayloadStarts
    | PayloadEnds
    | NoteReceived
    | PingReceived
    | ByeReceived
    | ErrorReceived
)

_WITHOUT_BODY: Mapping[FrameType, Event] = {
    FrameType.BYE: ByeReceived(),
    FrameType.PING: PingReceived(),
}


class Connection:
    """Both directions of one connection between rank `hello.rank` and rank `peer`.

    Whoever connected knows `peer`, and sends payloads; for None, the end that accepted, the
    peer's HELLO tells, and payloads come from there. Both prove to know `key` by an HMAC
    (RFC 2104, SHA-256) over their role and both HELLOs, whose nonces make it good for once.

    After a RemoteError nothing more may be read; `error()` may still be sent.
    """

    def __init__(
        self, hello: Hello, key: bytes, slices: SliceTable, peer: int | None = None
    ) -> None:
        self.ours = State.GREETING
        self.theirs = State.GREETING
        self.peer = peer
        self._our_transitions = ANSWERING if peer is None else SENDING
        self._their_transitions = SENDING if peer is None else ANSWERING
        self._hello = hello
        self._theirs: Hello | None = None
        self._key = key
        self._accepted = peer is None
        self._slices = slices
        self._head = memoryview(bytearray(HEADER_BYTES))
        self._body = memoryview(bytearray(MAX_BODY_BYTES))
        self._header: Header | None = None
        self._target: memoryview | None = None
        self._filled = 0

    # Sending

    def hello(self) -> bytes:
        """The HELLO frame: first of all."""
        self._send(FrameType.HELLO)
        return self._hello.encode()

    def proof(self) -> bytes:
        """The PROOF frame, when the peer's HELLO is there."""
        if self._theirs is None:
            raise LocalError("a PROOF answers a HELLO, which has not come")
        self._send(FrameType.PROOF)
        return encode_proof(self._proof(self._accepted, self._hello, self._theirs))

    def ping(self) -> bytes:
        """A PING frame."""
        self._send(FrameType.PING)
        return Header(FrameType.PING).encode()

    def payload(self, kind: FrameType, index: int, iteration: int) -> bytes:
        """The header of a PUSH or SUM; the slice's payload must follow it."""
        if kind not in PAYLOADS:
            raise LocalError(f"{kind.name} carries no payload")
        self._send(kind)
        return Header(kind, index, iteration, self._slices.size(kind, index)).encode()

    def note(self, kind: FrameType, index: int, iteration: int, length: int) -> bytes:
        """The header of one of `NOTES`; `length` bytes must follow it."""
        if kind not in NOTES:
            raise LocalError(f"{kind.name} is no note")
        self._send(kind)
        return Header(kind, index, iteration, length).encode()

    def bye(self) -> bytes:
        """The BYE frame; nothing may be sent after it."""
        self._send(FrameType.BYE)
        return Header(FrameType.BYE).encode()

    def error(self, code: ErrorCode, text: str) -> bytes:
        """An ERROR frame; nothing may be sent after it."""
        self._send(FrameType.ERROR)
        return encode_error(code, text)

    def _send(self, kind: FrameType) -> None:
        following = self._our_transitions.get((self.ours, kind))
        if following is None:
            raise LocalError(f"{kind.name} cannot be sent while {self.ours.name}")
        self.ours = following

    # Receiving

    def buffers(self) -> list[memoryview]:
        """Where the next bytes go, in order; never empty, and none of them is empty.

        LocalError while a payload waits to be placed.
        """
        if self._header is None:
            return [self._head[self._filled :]]
        if self._target is None:
            raise LocalError(f"{self._header} waits for its buffer: place one before reading")
        rest = self._target[self._filled :]
        if self._target.obj is self._body.obj:
            return [rest]
        return [rest, self._head]

    def place(self, buffer: memoryview) -> None:
        """Receive the payload that has just started into `buffer`: bytes, of the slice's size."""
        header = self._header
        if header is None or self._target is not None:
            raise LocalError("no payload waits for a buffer")
        if buffer.nbytes != header.length or buffer.itemsize != 1 or buffer.readonly:
            raise LocalError(f"{header} cannot be received into {buffer.nbytes} bytes")
        self._target = buffer

    def received(self, count: int) -> list[Event]:
        """`count` more bytes are in the buffers. RemoteError when they break the protocol."""
        events: list[Event] = []
        while count:
            if self._header is None:
                taken = min(count, HEADER_BYTES - self._filled)
                self._filled += taken
                if self._filled == HEADER_BYTES:
                    events += self._on_header()
            elif self._target is not None:
                taken = min(count, self._target.nbytes - self._filled)
                self._filled += taken
                if self._filled == self._target.nbytes:
                    events.append(self._on_body())
            else:
                raise LocalError(f"{count} bytes more than buffers() had room for")
            count -= taken
        return events

    def eof(self) -> None:
        """The peer has closed the connection. RemoteError unless it said BYE or ERROR before."""
        if self.theirs in (State.CLOSED, State.FAILED):
            return
        where = "in the middle of a frame" if self._filled or self._header else "without a BYE"
        self.theirs = State.FAILED
        raise RemoteError(ErrorCode.PEER_LOST, f"the connection ended {where}")

    def _on_header(self) -> list[Event]:
        self._filled = 0
        try:
            header = decode_header(self._head)
            following = self._their_transitions.get((self.theirs, header.type))
            if following is None:
                raise RemoteError(
                    ErrorCode.PROTOCOL, f"{header.type.name} while {self.theirs.name}"
                )
            if header.type in PAYLOADS:
                self._check_payload(header)
            elif header.type in NOTES:
                self._check_note(header)
        except RemoteError:
            self.theirs = State.FAILED
            raise
        if (event := _WITHOUT_BODY.get(header.type)) is not None:
            self.theirs = following
            return [event]
        self._header = header
        if header.type in PAYLOADS:
            return [PayloadStarts(header.type, header.index, header.iteration)]
        if header.type in NOTES:
            self._target = memoryview(bytearray(header.length))
        if header.length == 0:
            return [self._on_body()]
        if header.type in NOTES:
            return []
        self._target = self._body[: header.length]
        return []

    def _on_body(self) -> Event:
        header = self._header
        if header is None:
            raise LocalError("a body without a header")
        target = self._target
        self._header = self._target = None
        self._filled = 0
        if header.type in NOTES and target is not None:
            return NoteReceived(header.type, header.index, header.iteration, target)
        if header.type in PAYLOADS:
            return PayloadEnds(header.type, header.index, header.iteration)
        body = bytes(self._body[: header.length])
        self.theirs = State.FAILED
        if header.type is FrameType.ERROR:
            return ErrorReceived(*decode_error(header, body))
        if header.type is FrameType.PROOF:
            self._check_proof(body)
            self.theirs = State.OPEN
            return PeerProven()
        hello = decode_hello(body)
        self._check_claim(hello)
        self._theirs = hello
        self.peer = hello.rank
        self.theirs = State.PROVING
        return HelloReceived(hello)

    def _check_payload(self, header: Header) -> None:
        slices = self._slices
        what = f"{header.type.name} of slice {header.index}"
        if header.index >= len(slices.sizes):
            raise RemoteError(ErrorCode.PROTOCOL, f"{what}: there are {len(slices.sizes)} slices")
        size = slices.size(header.type, header.index)
        if header.length != size:
            raise RemoteError(
                ErrorCode.PROTOCOL,
                f"{what} has {header.length} bytes, not {size}",
            )
        server = slices.servers[header.index]
        addressed = self._hello.rank if header.type is FrameType.PUSH else self.peer
        if server != addressed:
            raise RemoteError(
                ErrorCode.PROTOCOL,
                f"{what} from rank {self.peer} to rank {self._hello.rank}: "
                f"its server is rank {server}",
            )

    def _check_note(self, header: Header) -> None:
        if header.type in ON_REQUEST:
            if header.index >= len(self._slices.sizes):
                raise RemoteError(ErrorCode.PROTOCOL, f"{header.type.name} of no slice of the plan")
            return
        states = self._slices.states
        what = f"{header.type.name} of {header.length} bytes"
        if not states:
            raise RemoteError(ErrorCode.PROTOCOL, f"{what}, but servers here only sum")
        if header.type is FrameType.STATE and (
            header.index >= len(states) or header.length > states[header.index]
        ):
            raise RemoteError(ErrorCode.PROTOCOL, f"{what} for slice {header.index}: too much")

    def _proof(self, accepted: bool, prover: Hello, verifier: Hello) -> bytes:
        role = b"accepted" if accepted else b"connected"
        return hmac.digest(self._key, role + prover.body() + verifier.body(), "sha256")

    def _check_claim(self, hello: Hello) -> None:
        mine = self._hello
        if not hello.rank < self._slices.world_size or hello.rank == mine.rank:
            raise RemoteError(ErrorCode.PROTOCOL, f"rank {mine.rank} hears a rank {hello.rank}")
        if self.peer is not None and hello.rank != self.peer:
            raise RemoteError(
                ErrorCode.PROTOCOL, f"rank {hello.rank} answers in place of rank {self.peer}"
            )
        if hello.band != mine.band:
            raise RemoteError(
                ErrorCode.PROTOCOL, f"band {hello.band} on a connection for band {mine.band}"
            )

    def _check_proof(self, proof: bytes) -> None:
        """Also what the peer said before: only now is it worth an answer."""
        mine, theirs = self._hello, self._theirs
        if theirs is None:
            raise LocalError("a PROOF without a HELLO")
        if not hmac.compare_digest(proof, self._proof(not self._accepted, theirs, mine)):
            raise RemoteError(
                ErrorCode.TOKEN,
                f"rank {theirs.rank} does not prove the job's token to rank {mine.rank}: give "
                "all ranks of a job the same P3_TOKEN, or none, and each job ports of its own",
            )
        if theirs.settings != mine.settings:
            raise RemoteError(
                ErrorCode.PLAN,
                f"rank {theirs.rank} has settings [{theirs.settings}], "
                f"rank {mine.rank} has [{mine.settings}]: give all ranks the same",
            )
        if theirs.digest != mine.digest:
            raise RemoteError(
                ErrorCode.PLAN,
                f"rank {theirs.rank} cut the model into other slices than rank {mine.rank}: "
                "build the same model in the same way on all ranks",
            )
