"""Frames ↔ bytes.

Every frame starts with a header of 24 bytes, big-endian:

| bytes | field | meaning |
| --- | --- | --- |
| 2 | magic | `P3` |
| 1 | version | 2 |
| 1 | type | see FrameType |
| 4 | index | slice of PUSH, SUM, NOTIFY, PULL and STATE, code of ERROR, else 0 |
| 8 | iteration | of PUSH, SUM, NOTIFY, PULL and COMMIT, else 0 |
| 8 | length | bytes that follow |

Payloads follow as they lie in memory; byte order is a part of the settings that HELLO compares.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

from p3.wire.errors import ErrorCode, LocalError, RemoteError

MAGIC = b"P3"
VERSION = 2
NONCE_BYTES = 32
PROOF_BYTES = 32
DIGEST_BYTES = 32
MAX_SETTINGS_BYTES = 1024
MAX_ERROR_BYTES = 2048
MAX_COMMIT_BYTES = 1 << 24
MAX_RANK = 2**32 - 1
MAX_ITERATION = 2**64 - 1

_HEADER = struct.Struct("!2sBBIQQ")
_HELLO = struct.Struct(f"!{NONCE_BYTES}s{DIGEST_BYTES}sIH")
HEADER_BYTES = _HEADER.size


class FrameType(IntEnum):
    """What a frame is for."""

    HELLO = 1
    """The first one each way: who speaks, and what for."""
    PUSH = 2
    """A worker's contribution to a slice, to the slice's server."""
    SUM = 3
    """The sum over all ranks, from the slice's server."""
    BYE = 4
    """The last one: nothing more comes, and that is as it should be."""
    ERROR = 5
    """The last one: the sender gives up, and says why."""
    PROOF = 6
    """The second one each way: the sender knows the job's key."""
    PING = 7
    """The sender runs."""
    COMMIT = 8
    """A worker calls step(): the settings, to a server that updates."""
    FETCH = 9
    """A worker wants the optimizer's state of all slices of the server that it asks."""
    STATE = 10
    """A slice's optimizer state: from its server, or to one that does not work, from rank 0."""
    DONE = 11
    """A worker contributes nothing more; as a server it goes on, for it has others' state."""
    NOTIFY = 12
    """A slice's sum is complete at its server, for a worker that will ask for it."""
    PULL = 13
    """A worker asks for the sum that it was told of."""


@dataclass(frozen=True, slots=True)
class Header:
    """A frame's first 24 bytes. `length` counts what follows them."""

    type: FrameType
    index: int = 0
    iteration: int = 0
    length: int = 0

    def encode(self) -> bytes:
        """24 bytes."""
        try:
            return _HEADER.pack(MAGIC, VERSION, self.type, self.index, self.iteration, self.length)
        except struct.error as error:
            raise LocalError(f"{self} does not fit a frame header: {error}") from error


@dataclass(frozen=True, slots=True)
class Hello:
    """Who speaks: `rank` on a connection for `band`; what must agree: `digest` and `settings`.

    `nonce` (32 random bytes) is the challenge that the peer's PROOF answers, `digest` (32 bytes)
    the slice plan's, `settings` a line of text that people can read when it differs.
    """

    nonce: bytes
    digest: bytes
    rank: int
    band: int
    settings: str

    def encode(self) -> bytes:
        """Header and body. LocalError when a field has a wrong size."""
        body = self.body()
        return Header(FrameType.HELLO, length=len(body)).encode() + body

    def body(self) -> bytes:
        """What is sent and, with the peer's, signed. LocalError as `encode`."""
        settings = self.settings.encode()
        if len(self.nonce) != NONCE_BYTES or len(self.digest) != DIGEST_BYTES:
            raise LocalError(
                f"HELLO with a nonce of {len(self.nonce)} and a digest of {len(self.digest)} bytes"
            )
        if len(settings) > MAX_SETTINGS_BYTES:
            raise LocalError(f"HELLO with {len(settings)} bytes of settings")
        try:
            fixed = _HELLO.pack(self.nonce, self.digest, self.rank, self.band)
        except struct.error as error:
            raise LocalError(f"HELLO of rank {self.rank}, band {self.band}: {error}") from error
        return fixed + settings


def encode_proof(proof: bytes) -> bytes:
    """Header and body."""
    return Header(FrameType.PROOF, length=len(proof)).encode() + proof


def encode_error(code: ErrorCode, text: str) -> bytes:
    """Header and body; a text over 2048 bytes of UTF-8 is cut."""
    body = text.encode("utf-8", "replace")[:MAX_ERROR_BYTES]
    return Header(FrameType.ERROR, index=code, length=len(body)).encode() + body


def decode_header(data: bytes | bytearray | memoryview) -> Header:
    """The header in 24 bytes. RemoteError for what no peer of this version sends."""
    magic, version, kind, index, iteration, length = _HEADER.unpack(data)
    if magic != MAGIC:
        raise RemoteError(ErrorCode.PROTOCOL, f"a frame starts with {magic!r}, not {MAGIC!r}")
    if version != VERSION:
        raise RemoteError(
            ErrorCode.VERSION,
            f"protocol version {version}, here {VERSION}: install the same release on all nodes",
        )
    try:
        header = Header(FrameType(kind), index, iteration, length)
    except ValueError:
        raise RemoteError(ErrorCode.PROTOCOL, f"unknown frame type {kind}") from None
    _check_sizes(header)
    return header


def _check_sizes(header: Header) -> None:
    """What can be said of a header without knowing the slices."""
    least, most = _BODY_BYTES.get(header.type, (0, MAX_ITERATION))
    if not least <= header.length <= most:
        raise RemoteError(
            ErrorCode.PROTOCOL,
            f"{header.type.name} with {header.length} bytes, not {least} to {most}",
        )
    if header.type not in _WITH_ITERATION and header.iteration:
        raise RemoteError(
            ErrorCode.PROTOCOL, f"{header.type.name} names iteration {header.iteration}"
        )
    if header.type not in _WITH_INDEX and header.index:
        raise RemoteError(ErrorCode.PROTOCOL, f"{header.type.name} names slice {header.index}")


_BODY_BYTES = {
    FrameType.HELLO: (_HELLO.size, _HELLO.size + MAX_SETTINGS_BYTES),
    FrameType.PROOF: (PROOF_BYTES, PROOF_BYTES),
    FrameType.PING: (0, 0),
    FrameType.BYE: (0, 0),
    FrameType.ERROR: (0, MAX_ERROR_BYTES),
    FrameType.NOTIFY: (0, 0),
    FrameType.PULL: (0, 0),
    FrameType.COMMIT: (1, MAX_COMMIT_BYTES),
    FrameType.FETCH: (0, 0),
    FrameType.DONE: (0, 0),
}
PAYLOADS = frozenset({FrameType.PUSH, FrameType.SUM})
"""What is received to where it belongs."""
ON_REQUEST = frozenset({FrameType.NOTIFY, FrameType.PULL})
"""What goes before a SUM where workers ask for it."""
NOTES = ON_REQUEST | {FrameType.COMMIT, FrameType.FETCH, FrameType.STATE, FrameType.DONE}
"""What is received into memory of its own."""
MAX_BODY_BYTES = max(
    most for kind, (_, most) in _BODY_BYTES.items() if kind not in PAYLOADS | NOTES
)
"""The longest body of all others."""
_WITH_ITERATION = PAYLOADS | ON_REQUEST | {FrameType.COMMIT}
_WITH_INDEX = PAYLOADS | ON_REQUEST | {FrameType.STATE, FrameType.ERROR}


def decode_hello(body: bytes) -> Hello:
    """A HELLO's body. RemoteError when its text is not UTF-8."""
    nonce, digest, rank, band = _HELLO.unpack_from(body)
    try:
        settings = body[_HELLO.size :].decode()
    except UnicodeDecodeError as error:
        raise RemoteError(ErrorCode.PROTOCOL, f"settings are not UTF-8: {error}") from error
    return Hello(nonce, digest, rank, band, settings)


def decode_error(header: Header, body: bytes) -> tuple[ErrorCode, str]:
    """An ERROR's code and text. A code of a later release counts as PROTOCOL."""
    try:
        code = ErrorCode(header.index)
    except ValueError:
        code = ErrorCode.PROTOCOL
    return code, body.decode("utf-8", "replace")
