"""What was at an interface's root, to be put back later, as bytes that survive a crash. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import msgspec

from p3_shaper.tcmessage import TcMessage

_VERSION = 1


class SnapshotError(ValueError):
    """Bytes that are no snapshot; the message says what is wrong with them."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The root tree of one interface, as the kernel told it; no messages mean its default.

    `index`, `name` and `mac` say which interface it was (an index alone is reused).
    """

    index: int
    name: str
    mac: str
    messages: tuple[TcMessage, ...] = ()
    version: int = _VERSION

    def to_bytes(self) -> bytes:
        """JSON, one object; options in base64."""
        return msgspec.json.encode(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """What `to_bytes` made; raises SnapshotError for anything else."""
        try:
            snapshot = msgspec.json.decode(data, type=cls)
        except msgspec.DecodeError as error:
            raise SnapshotError(f"this is not a snapshot of an interface: {error}") from error
        if snapshot.version != _VERSION:
            raise SnapshotError(
                f"this snapshot has version {snapshot.version}, and only {_VERSION} is known here: "
                "restore it with the release that made it"
            )
        return snapshot
