"""The slice protocol without I/O: frames, limits, states. Version 2, TCP, one band a connection.

Each end first sends HELLO, then PROOF, which answers the other's HELLO. Then the end that
connected sends PUSH and SUM in any order, both ends PING; each end's last frame is BYE or ERROR.
The peer may be hostile until its PROOF has shown that it knows the job's key, and broken at any
time: every length is checked before anything is read or stored. The key itself never travels.

Payloads go one way on a connection because of acknowledgements: on a node that lets pure ACKs
overtake, a payload that waits in a low band carries an old one. A receiver takes what
acknowledges too long ago for an attack and drops it (RFC 5961, section 5.2).
"""

from p3.wire.connection import (
    ANSWERING,
    SENDING,
    ByeReceived,
    Connection,
    ErrorReceived,
    Event,
    HelloReceived,
    NoteReceived,
    PayloadEnds,
    PayloadStarts,
    PeerProven,
    PingReceived,
    SliceTable,
    State,
)
from p3.wire.errors import ErrorCode, LocalError, RemoteError, WireError
from p3.wire.frames import HEADER_BYTES, NOTES, ON_REQUEST, VERSION, FrameType, Header, Hello

__all__ = [
    "ANSWERING",
    "HEADER_BYTES",
    "NOTES",
    "ON_REQUEST",
    "SENDING",
    "VERSION",
    "ByeReceived",
    "Connection",
    "ErrorCode",
    "ErrorReceived",
    "Event",
    "FrameType",
    "Header",
    "Hello",
    "HelloReceived",
    "LocalError",
    "NoteReceived",
    "PayloadEnds",
    "PayloadStarts",
    "PeerProven",
    "PingReceived",
    "RemoteError",
    "SliceTable",
    "State",
    "WireError",
]
