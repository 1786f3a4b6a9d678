"""Log records as journald's own entries: a field each for level, place and event, not a line.

The protocol is systemd's "Native Journal Protocol": one datagram an entry, `FIELD=value` lines, a
value with a line break as its length and its bytes.
"""

from __future__ import annotations

import logging
import os
import socket
import struct
from collections.abc import Iterator, Mapping

SOCKET = "/run/systemd/journal/socket"
IDENTIFIER = "p3-agent"
_MAX_VALUE = 16384  # bytes; far under what a datagram may have (208 KiB by default)
_PRIORITIES = (  # sd-daemon(3), least urgent first; a level between two is the lower one
    (logging.INFO, 7),
    (logging.WARNING, 6),
    (logging.ERROR, 4),
    (logging.CRITICAL, 3),
)


def priority_of(level: int) -> int:
    """A logging level as syslog's priority: DEBUG is 7, CRITICAL 2."""
    return next((priority for above, priority in _PRIORITIES if level < above), 2)


def goes_to_journal(descriptor: int, environment: Mapping[str, str]) -> bool:
    """Whether this descriptor leads to the journal: $JOURNAL_STREAM says so (systemd.exec(5))."""
    status = os.fstat(descriptor)
    return environment.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


class JournalHandler(logging.Handler):
    """Sends every record at once, or hands it to `otherwise` when journald does not take it.

    A record's `event` (`extra={"event": "reload"}`) becomes P3_EVENT.
    """

    def __init__(self, otherwise: logging.Handler, path: str = SOCKET) -> None:
        super().__init__()
        self._otherwise = otherwise
        self._path = path
        self._socket = socket.socket(
            socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        )

    def emit(self, record: logging.LogRecord) -> None:
        """Send one record."""
        entry = b"".join(_field(name, value) for name, value in self._fields(record))
        try:
            self._socket.sendto(entry, self._path)
        except OSError:  # full, or no journald: never a reason to wait
            self._otherwise.handle(record)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()
        super().close()

    def _fields(self, record: logging.LogRecord) -> Iterator[tuple[str, str]]:
        yield "MESSAGE", self.format(record)
        yield "PRIORITY", str(priority_of(record.levelno))
        yield "SYSLOG_IDENTIFIER", IDENTIFIER
        yield "LOGGER", record.name
        yield "CODE_FILE", record.pathname
        yield "CODE_LINE", str(record.lineno)
        yield "CODE_FUNC", record.funcName
        event = record.__dict__.get("event")
        if event is not None:
            yield "P3_EVENT", str(event)


class PriorityFormatter(logging.Formatter):
    """Puts sd-daemon(3)'s `<N>` before a line, which journald reads from a standard stream."""

    def format(self, record: logging.LogRecord) -> str:
        """One line: a break in it would begin an entry of its own."""
        text = super().format(record).replace("\n", "; ")
        return f"<{priority_of(record.levelno)}>{text}"


def _field(name: str, value: str) -> bytes:
    data = value.encode(errors="backslashreplace")[:_MAX_VALUE]
    if b"\n" in data:
        return b"%s\n%s%s\n" % (name.encode(), struct.pack("<Q", len(data)), data)
    return b"%s=%s\n" % (name.encode(), data)
