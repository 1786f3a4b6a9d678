"""Ending what runs in a cluster's namespaces: asked first, then killed, waited for by pidfd."""

from __future__ import annotations

import math
import os
import select
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from p3_shaper.cluster_names import NAMESPACES

Handler = Callable[[int, FrameType | None], object] | int
QUICK_SUCCESSION = 0.5
"""Seconds; a person who presses Ctrl-C again is slower or does not mind."""
_DEFERRED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def inside(namespaces: Iterable[str]) -> set[int]:
    """Process ids of everything that runs in one of the named network namespaces."""
    wanted = {identity for name in namespaces if (identity := _identity(NAMESPACES / name))}
    pids = {int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()}
    pids.discard(os.getpid())
    return {pid for pid in pids if _identity(Path(f"/proc/{pid}/ns/net")) in wanted}


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except (FileNotFoundError, ProcessLookupError):  # ended meanwhile
        return None
    except PermissionError:  # a sandbox hides it even from root: then it is none of ours
        return None
    return status.st_dev, status.st_ino


def end(pids: Iterable[int], number: signal.Signals, grace: float) -> set[int]:
    """Sends a signal to every process and waits until all have ended, `grace` seconds at most.

    Children of the caller stay zombies until the caller waits for them. Returns those that still
    run.
    """
    watched: dict[int, int] = {}
    poll = select.poll()
    try:
        for pid in pids:
            with suppress(ProcessLookupError):
                descriptor = os.pidfd_open(pid)
                watched[descriptor] = pid
                poll.register(descriptor, select.POLLIN)
                signal.pidfd_send_signal(descriptor, number)
        return _wait(poll, dict(watched), time.monotonic() + grace)
    finally:
        for descriptor in watched:
            os.close(descriptor)


def _wait(poll: select.poll, running: dict[int, int], deadline: float) -> set[int]:
    while running:
        left = deadline - time.monotonic()
        if left <= 0:
            break
        for descriptor, _ in poll.poll(left * 1000):
            poll.unregister(descriptor)
            del running[descriptor]
    return set(running.values())


@contextmanager
def deferred_signals() -> Iterator[None]:
    """Holds back SIGINT, SIGTERM and SIGHUP until the block ends; only the main thread can.

    Replaces the handlers rather than the thread's mask: a signal that another thread takes would
    interrupt the main thread all the same.
    """
    arrived: list[int] = []

    def remember(number: int, _frame: FrameType | None) -> None:
        arrived.append(number)

    before: dict[int, Handler] = {}
    try:
        for number in _DEFERRED:
            handler = signal.getsignal(number)
            if handler is not None:  # None: set by C code, which we could not put back
                signal.signal(number, remember)
                before[number] = handler
    except ValueError:  # not the main thread: signals do not interrupt it
        pass
    try:
        yield
    finally:
        for changed, handler in before.items():
            signal.signal(changed, handler)
        for late in dict.fromkeys(arrived):
            signal.raise_signal(late)


@contextmanager
def exit_on_termination() -> Iterator[None]:
    """Turns SIGTERM and SIGHUP into SystemExit, so that `with` blocks are left in order.

    Of signals in quick succession, SIGINT too, the first alone counts: the next would hit the
    few instructions between leaving the block and holding signals back. Only where Python or
    the kernel would have ended the process: a caller's own handler stays.
    """
    left = -math.inf

    def leave(number: int, _frame: FrameType | None) -> None:
        nonlocal left
        before, left = left, time.monotonic()
        if left - before > QUICK_SUCCESSION:
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            raise SystemExit(128 + number)

    usual: dict[signal.Signals, Handler] = {
        signal.SIGTERM: signal.SIG_DFL,
        signal.SIGHUP: signal.SIG_DFL,
        signal.SIGINT: signal.default_int_handler,
    }
    changed: list[signal.Signals] = []
    try:
        for number, handler in usual.items():
            if signal.getsignal(number) is handler:
                with suppress(ValueError):  # not the main thread
                    signal.signal(number, leave)
                    changed.append(number)
        yield
    finally:
        for number in changed:
            signal.signal(number, usual[number])
