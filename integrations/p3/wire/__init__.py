"""The slice protocol without I/O: frames, limits, states. Version 1, TCP, one band a connection.

Each end first sends HELLO; then come PUSH and SUM in any order, and at the end BYE or ERROR. The
peer may be hostile until its HELLO has shown the job's token, and broken at any time: every length
is checked before anything is read or stored.
"""

from p3.wire.connection import (
    TRANSITIONS,
    ByeReceived,
    Connection,
    ErrorReceived,
    Event,
    HelloReceived,
    PayloadEnds,
    PayloadStarts,
    SliceTable,
    State,
)
from p3.wire.errors import ErrorCode, LocalError, RemoteError, WireError
from p3.wire.frames import HEADER_BYTES, VERSION, FrameType, Header, Hello

__all__ = [
    "HEADER_BYTES",
    "TRANSITIONS",
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
    "PayloadEnds",
    "PayloadStarts",
    "RemoteError",
    "SliceTable",
    "State",
    "WireError",
]
