"""Log lines that never hold up the work: what cannot be written at once is dropped and counted."""

from __future__ import annotations

import logging
import os
import select
import sys

from p3_agent.journal import JournalHandler, PriorityFormatter, goes_to_journal

_AT_ONCE = 4096
"""PIPE_BUF: as much as a descriptor that polls as writable takes without blocking (pipe(7))."""
_FORMAT = "%(levelname)s %(name)s: %(message)s"


class PromptHandler(logging.Handler):
    """Writes each line in one write to a descriptor, or not at all if nobody reads there."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)
        self._dropped = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line; lines that had to be dropped are counted in the next that is written."""
        text = self.format(record)
        if self._dropped:
            text = f"({self._dropped} lines could not be written) {text}"
        data = text.encode(errors="backslashreplace")[: _AT_ONCE - 1] + b"\n"
        self._dropped = 0 if self._write(data) else self._dropped + 1

    def _write(self, data: bytes) -> bool:
        # Polled rather than O_NONBLOCK, which whoever shares the terminal or pipe would get, too.
        if not any(events & select.POLLOUT for _, events in self._poll.poll(0)):
            return False
        try:
            return os.write(self._descriptor, data) == len(data)
        except OSError:  # nobody is there to read, nor to be told
            return False


def _handler(descriptor: int) -> logging.Handler:
    lines = PromptHandler(descriptor)
    if not goes_to_journal(descriptor, os.environ):
        lines.setFormatter(logging.Formatter(_FORMAT))
        return lines
    lines.setFormatter(PriorityFormatter(_FORMAT))
    return JournalHandler(otherwise=lines)


def start(*, verbose: bool) -> None:
    """Log to standard error, or to the journal if it leads there; every check if `verbose`."""
    logging.basicConfig(level=logging.INFO, handlers=[_handler(sys.stderr.fileno())])
    if verbose:
        logging.getLogger("p3_agent").setLevel(logging.DEBUG)
