"""What can go wrong with the slice protocol: our own fault, or the peer's."""

from __future__ import annotations

from enum import IntEnum


class ErrorCode(IntEnum):
    """Why a connection, and with it the job, ends; travels in an ERROR frame."""

    PROTOCOL = 1
    """Frames that break the protocol."""
    TOKEN = 2
    """The peer belongs to another job."""
    VERSION = 3
    """The peer speaks another version of the protocol."""
    PLAN = 4
    """The peer has other slices or other settings."""
    PEER_LOST = 5
    """Some rank went away."""
    INTERNAL = 6
    """A defect in this program."""


class WireError(Exception):
    """The base of both."""


class LocalError(WireError):
    """We asked for something that the protocol does not allow now: a defect on this side."""


class RemoteError(WireError):
    """The peer sent what it may not send. `code` and the text suit an ERROR frame for it."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code
