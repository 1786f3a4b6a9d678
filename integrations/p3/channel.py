"""One connection of the mesh at work: what leaves is most urgent first, what comes is parsed."""

from __future__ import annotations

import heapq
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from p3.loop import Loop
from p3.mesh import Link
from p3.sockets import limit_window
from p3.wire import NOTES, ErrorCode, Event, FrameType, RemoteError


@dataclass(slots=True, order=True)
class Message:
    """A payload or note to send. Ordered by `due` (see Schedule), then `number`: first come.

    `on_sent` is called when the kernel has all of it, or when it is dropped.
    """

    due: int
    number: int
    kind: FrameType
    index: int
    iteration: int
    view: memoryview
    on_sent: Callable[[], None] | None = None


DISCARD_BYTES = 1 << 18
TURN_BYTES = 1 << 18
"""After so many a channel lets the others have their turn: on a fast path it might never block."""


class Owner(Protocol):
    """Whom a channel tells what happens."""

    def on_event(self, channel: Channel, event: Event) -> None:
        """The peer sent something. May raise RemoteError, with which the channel breaks."""
        ...

    def on_sent(self, band: int, count: int) -> None:
        """A payload of `count` bytes is the kernel's now."""
        ...

    def on_broken(self, channel: Channel, error: RemoteError) -> None:
        """Nothing can be read any more. Not called for an end after BYE or ERROR."""
        ...

    def on_progress(self) -> None:
        """A channel is `concluded` or `closed` now."""
        ...


class Channel:
    """A link and its heap. Used in the loop's thread alone.

    `window` bounds what the peer may have under way on it, in bytes.
    """

    def __init__(self, link: Link, loop: Loop, owner: Owner, window: int | None = None) -> None:
        self.peer = link.peer
        self.band = link.band.index
        self.address = link.address
        self.concluded = False  # nothing more is to be sent
        self.heard = False  # set when bytes come; whoever looks clears it
        self._sock = link.sock
        self._connection = link.connection
        self._loop = loop
        self._owner = owner
        self._heap: list[Message] = []
        self._current: Message | None = None
        self._writing: list[memoryview] = []
        self._ping_due = False
        self._last: Callable[[], bytes] | None = None
        self._said_last = False
        self._blocked = False
        self._muted = False
        self._open = True
        self._window = window
        loop.register(link.sock.fileno(), self)
        self._limit()

    @property
    def urgency(self) -> int:
        """The band."""
        return self.band

    @property
    def head(self) -> Message | None:
        """The most urgent message that has not begun."""
        return self._heap[0] if self._heap else None

    @property
    def closed(self) -> bool:
        """Nothing comes and nothing can be sent any more."""
        return not self._open

    @property
    def waiting(self) -> int:
        """How many messages have not begun."""
        return len(self._heap)

    def pop(self) -> Message:
        """Take `head` out, to send it elsewhere."""
        return heapq.heappop(self._heap)

    def push(self, message: Message) -> None:
        """Send `message` when it is its turn; drops it when nothing can be sent any more."""
        if self._last is not None or not self._open:
            _drop(message)
            return
        heapq.heappush(self._heap, message)
        if not self._blocked:
            self.on_writable()

    def ping(self) -> None:
        """Show that this rank runs, after the frame under way; what comes after BYE need not."""
        if self._last is None and self._open:
            self._ping_due = True
            if not self._blocked:
                self.on_writable()

    def conclude(self) -> None:
        """Say BYE after all that waits, and nothing more."""
        if self._last is None:
            self._last = self._connection.bye
            self.on_writable()

    def abort(self, code: ErrorCode, text: str) -> None:
        """Say ERROR after the frame under way, and nothing more; what comes is not looked at."""
        self._muted = True
        self._drop_heap()
        if not self._said_last:
            self._last = partial(self._connection.error, code, text)
        self.on_writable()

    def close(self) -> None:
        """Close the socket; what waits is dropped. Again is harmless."""
        if not self._open:
            return
        self._open = False
        self._loop.unregister(self._sock.fileno())
        self._sock.close()
        self._writing.clear()
        self._drop_heap()
        if self._current is not None:
            _drop(self._current)
            self._current = None
        self.concluded = True
        self._owner.on_progress()

    def place(self, view: memoryview) -> None:
        """Receive the payload that has just started into `view`."""
        self._connection.place(view)
        self._limit()

    def on_readable(self) -> None:
        """Receive what one call gives, straight to where it belongs."""
        try:
            if self._muted:
                if not self._sock.recv(DISCARD_BYTES):
                    self.close()
                return
            count = self._sock.recvmsg_into(self._connection.buffers())[0]
            if count:
                self.heard = True
                for event in self._connection.received(count):
                    self._owner.on_event(self, event)
            else:
                self._end("the connection ended")
        except BlockingIOError:
            return
        except OSError as error:
            self._end(f"the connection broke: {error.strerror}")
        except RemoteError as error:
            self._owner.on_broken(self, error)

    def on_writable(self) -> None:
        """Send as much as the kernel takes now, or until it is the others' turn."""
        total = 0
        while self._open and (self._writing or self._begin()):
            if total >= TURN_BYTES:
                self._block(True)
                return
            try:
                sent = self._sock.sendmsg(self._writing)
            except BlockingIOError:
                sent = 0
            except OSError as error:
                self._end(f"the connection broke: {error.strerror}")
                return
            total += sent
            if not self._took(sent):
                self._block(True)
                return
        if self._open:
            self._block(False)

    def _begin(self) -> bool:
        """Whether there is another frame to send."""
        if self._ping_due:
            self._ping_due = False
            self._writing = [memoryview(self._connection.ping())]
            return True
        if self._heap:
            self._current = message = heapq.heappop(self._heap)
            what = (message.kind, message.index, message.iteration)
            if message.kind in NOTES:
                head = self._connection.note(*what, message.view.nbytes)
            else:
                head = self._connection.payload(*what)
            self._writing = [memoryview(head), message.view]
            return True
        if self._last is None or self._said_last:
            return False
        self._writing = [memoryview(self._last())]
        self._said_last = True
        return True

    def _took(self, count: int) -> bool:
        """`count` bytes are sent; whether the frame is complete."""
        writing = self._writing
        while writing and count >= len(writing[0]):
            count -= len(writing.pop(0))
        if writing:
            writing[0] = writing[0][count:]
            return False
        message, self._current = self._current, None
        if message is not None:
            self._owner.on_sent(self.band, message.view.nbytes)
            _drop(message)
        elif self._said_last:
            with suppress(OSError):  # the peer may have closed first
                self._sock.shutdown(socket.SHUT_WR)
            self.concluded = True
            self._owner.on_progress()
        return True

    def _end(self, reason: str) -> None:
        """Nothing comes any more: as announced, or not."""
        try:
            self._connection.eof()
        except RemoteError as error:
            if not self._muted:
                self._owner.on_broken(self, RemoteError(error.code, f"{reason} without a BYE"))
        self.close()

    def _limit(self) -> None:
        if self._window is not None:
            limit_window(self._sock, self._window)

    def _block(self, blocked: bool) -> None:
        if blocked != self._blocked:
            self._blocked = blocked
            self._loop.want(self._sock.fileno(), writable=blocked)

    def _drop_heap(self) -> None:
        while self._heap:
            _drop(heapq.heappop(self._heap))


def _drop(message: Message) -> None:
    if message.on_sent is not None:
        message.on_sent()
