"""A terminal that shows one screen again and again, until q or a signal. Plain ANSI.

Where there is no terminal, only the signals are left.
"""

from __future__ import annotations

import enum
import os
import select
import signal
import socket
import sys
import termios
import time
import tty
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

_ENTER = "\x1b[?1049h\x1b[?25l"  # the alternate screen, without a cursor
_LEAVE = "\x1b[?25h\x1b[?1049l"
_HOME, _END_OF_LINE, _END_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"
_QUIT_KEYS = b"qQ\x03\x04"
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Wait(enum.Enum):
    """Why waiting ended."""

    TIME = "time"
    RESIZE = "resize"
    QUIT = "quit"


class Terminal:
    """Made by `open_terminal`. `is_live` is whether a screen is shown at all."""

    def __init__(self, signals: socket.socket, *, is_live: bool, keys: int | None) -> None:
        self._signals = signals
        self._keys = keys
        self.is_live = is_live

    def show(self, lines: Sequence[str]) -> None:
        """Put `lines`, which must fit, in place of what the screen shows."""
        body = f"{_END_OF_LINE}\r\n".join(lines)
        sys.stdout.write(f"{_HOME}{body}{_END_OF_LINE}{_END_OF_SCREEN}")
        sys.stdout.flush()

    def size(self) -> tuple[int, int]:
        """Columns and lines, as they are now."""
        columns, lines = os.get_terminal_size(sys.stdout.fileno())
        return columns or 80, lines or 24

    def wait(self, until: float) -> Wait:
        """Wait for a key, a signal or the monotonic time `until`."""
        while True:
            signals = self._signals.fileno()
            watched = [signals] if self._keys is None else [signals, self._keys]
            ready, _, _ = select.select(watched, [], [], max(0.0, until - time.monotonic()))
            if not ready:
                return Wait.TIME
            if signals in ready:
                numbers = self._signals.recv(64)
                return Wait.QUIT if any(item in _ENDING for item in numbers) else Wait.RESIZE
            if self._keys is not None and self._asks_to_quit(self._keys):
                return Wait.QUIT

    def _asks_to_quit(self, keys: int) -> bool:
        pressed = os.read(keys, 64)
        return not pressed or any(key in _QUIT_KEYS for key in pressed)


@contextmanager
def open_terminal(*, live: bool) -> Iterator[Terminal]:
    """Take over signals and, if `live` and standard output is one, the terminal; all is given back.

    For the main thread.
    """
    is_live = live and sys.stdout is not None and sys.stdout.isatty()
    keys = sys.stdin.fileno() if is_live and sys.stdin.isatty() else None
    with _signals() as signals, _single_keys(keys):
        if is_live:
            sys.stdout.write(_ENTER)
        try:
            yield Terminal(signals, is_live=is_live, keys=keys)
        finally:
            if is_live:
                sys.stdout.write(_LEAVE)
                sys.stdout.flush()


@contextmanager
def _signals() -> Iterator[socket.socket]:
    """A socket on which the numbers of caught signals arrive, a byte each."""
    reader, writer = socket.socketpair()
    with reader, writer:
        reader.setblocking(False)
        writer.setblocking(False)
        before = {number: signal.signal(number, _note) for number in (*_ENDING, signal.SIGWINCH)}
        wakeup = signal.set_wakeup_fd(writer.fileno())
        try:
            yield reader
        finally:
            signal.set_wakeup_fd(wakeup)
            for number, handler in before.items():
                signal.signal(number, handler)


def _note(_number: int, _frame: FrameType | None) -> None:
    """The number is on its way through the wakeup socket already."""


@contextmanager
def _single_keys(keys: int | None) -> Iterator[None]:
    """Keys as they are pressed, not echoed."""
    if keys is None:
        yield
        return
    before = termios.tcgetattr(keys)
    tty.setcbreak(keys)
    try:
        yield
    finally:
        termios.tcsetattr(keys, termios.TCSADRAIN, before)
