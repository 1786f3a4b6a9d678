"""An event loop in a thread: sockets that are ready, calls from other threads, timers."""

from __future__ import annotations

import heapq
import itertools
import os
import select
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Protocol

Call = Callable[[], None]


class Ready(Protocol):
    """What the loop tells about a socket."""

    @property
    def urgency(self) -> int:
        """Of several that are ready, those with the smallest go first."""
        ...

    def on_readable(self) -> None:
        """Bytes or the end are there."""
        ...

    def on_writable(self) -> None:
        """There is room again, as TCP_NOTSENT_LOWAT sees it."""
        ...


class Loop:
    """Runs in a daemon thread of its own until `stop`, then calls `on_end(crashed)` there.

    `call` may be used from any thread; everything else from the loop's own, or before `start`.
    """

    def __init__(self, name: str, on_end: Callable[[bool], None]) -> None:
        self._epoll = select.epoll()
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._event, select.EPOLLIN)
        self._handlers: dict[int, Ready] = {}
        self._calls: deque[Call] = deque()
        self._timers: list[tuple[float, int, Call]] = []
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._woken = False
        self._running = True
        self._on_end = on_end
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        _loops.add(self)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def call(self, function: Call) -> None:
        """Run `function` in the loop's thread, soon; calls keep their order. In vain at the end."""
        with self._lock:
            if self._running:
                self._calls.append(function)
                if not self._woken:
                    self._woken = True
                    os.eventfd_write(self._event, 1)

    def stop(self) -> None:
        """End the loop after what is being handled now."""
        self._running = False

    def join(self, timeout: float | None = None) -> None:
        """Wait until the thread has ended, `timeout` seconds at most."""
        self._thread.join(timeout)

    def after(self, seconds: float, function: Call) -> None:
        """Run `function` in `seconds`."""
        when = time.monotonic() + seconds
        heapq.heappush(self._timers, (when, next(self._numbers), function))

    def register(self, fd: int, handler: Ready) -> None:
        """Tell `handler` when `fd` is readable."""
        self._handlers[fd] = handler
        self._epoll.register(fd, select.EPOLLIN)

    def want(self, fd: int, *, writable: bool) -> None:
        """Whether to tell when `fd` is writable, too."""
        self._epoll.modify(fd, select.EPOLLIN | (select.EPOLLOUT if writable else 0))

    def unregister(self, fd: int) -> None:
        """Forget `fd`."""
        del self._handlers[fd]
        self._epoll.unregister(fd)

    def leave_to_parent(self) -> None:
        """In a forked process, which has no such thread: hold none of the descriptors.

        Else others would take this rank for alive as long as one of its children lives.
        """
        self._lock = threading.Lock()
        self._running = False
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        # The numbers stay taken: whoever owns one may yet close it.
        for fd in (self._epoll.fileno(), self._event, *self._handlers):
            os.dup2(nothing, fd, inheritable=False)
        os.close(nothing)

    def _run(self) -> None:
        crashed = True
        try:
            while self._running:
                self._turn()
            crashed = False
        finally:
            with self._lock:
                self._running = False
                self._calls.clear()
            try:
                self._on_end(crashed)
            finally:
                _loops.discard(self)
                self._epoll.close()
                os.close(self._event)

    def _turn(self) -> None:
        wait = max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else -1
        polled = dict(self._epoll.poll(wait))
        if polled.pop(self._event, 0):
            self._run_calls()
        # Calls may have unregistered what was polled.
        ready = sorted(
            (handler.urgency, fd, events)
            for fd, events in polled.items()
            if (handler := self._handlers.get(fd)) is not None
        )
        for _, fd, events in ready:
            self._tell(fd, events)
        while self._timers and self._timers[0][0] <= time.monotonic():
            heapq.heappop(self._timers)[2]()

    def _tell(self, fd: int, events: int) -> None:
        # Any handler may unregister any other, so look each one up.
        if events & ~select.EPOLLOUT and (handler := self._handlers.get(fd)) is not None:
            handler.on_readable()
        if events & select.EPOLLOUT and (handler := self._handlers.get(fd)) is not None:
            handler.on_writable()

    def _run_calls(self) -> None:
        with self._lock:
            os.eventfd_read(self._event)
            self._woken = False
            calls = list(self._calls)
            self._calls.clear()
        for function in calls:
            function()


_loops: weakref.WeakSet[Loop] = weakref.WeakSet()


def _after_fork() -> None:
    for loop in list(_loops):
        loop.leave_to_parent()


os.register_at_fork(after_in_child=_after_fork)
