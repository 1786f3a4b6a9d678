from __future__ import annotations

import multiprocessing
import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from queue import Queue

import pytest

from p3.loop import Loop

WAIT_S = 30


class Pipe:
    """A handler over a pipe that notes what it is told."""

    def __init__(self, loop: Loop, urgency: int, told: Queue[int]) -> None:
        self.urgency = urgency
        self._told = told
        self._loop = loop
        self.end, self._other = os.pipe()
        os.write(self._other, b"x")

    def on_readable(self) -> None:
        self._told.put(self.urgency)
        self._loop.unregister(self.end)

    def on_writable(self) -> None:
        raise AssertionError("nobody asked")

    def close(self) -> None:
        os.close(self.end)
        os.close(self._other)


@contextmanager
def running() -> Iterator[tuple[Loop, Queue[bool]]]:
    ended: Queue[bool] = Queue()
    loop = Loop("test", ended.put)
    loop.start()
    try:
        yield loop, ended
    finally:
        loop.call(loop.stop)
        loop.join(WAIT_S)


def test_a_call_may_unregister_what_is_ready_at_the_same_time() -> None:
    told: Queue[int] = Queue()
    with running() as (loop, ended):
        pipe = Pipe(loop, 1, told)

        def both_at_once() -> None:
            loop.call(partial(loop.unregister, pipe.end))  # first, so that it is polled first
            loop.call(loop.stop)
            loop.register(pipe.end, pipe)

        loop.call(both_at_once)
        assert ended.get(timeout=WAIT_S) is False
    pipe.close()
    assert told.empty()


def test_calls_from_many_threads_all_run_in_the_loops_own_in_order() -> None:
    seen: Queue[tuple[int, int, str]] = Queue()

    def note(who: int, number: int) -> None:
        seen.put((who, number, threading.current_thread().name))

    with running() as (loop, _):

        def ask(who: int) -> None:
            for number in range(200):
                loop.call(partial(note, who, number))

        with ThreadPoolExecutor(3) as pool:
            list(pool.map(ask, range(3)))
        got = [seen.get(timeout=WAIT_S) for _ in range(600)]
    assert {name for *_, name in got} == {"test"}
    for who in range(3):
        assert [number for caller, number, _ in got if caller == who] == list(range(200))


def test_the_most_urgent_of_those_ready_goes_first() -> None:
    told: Queue[int] = Queue()
    with running() as (loop, _):
        pipes = [Pipe(loop, urgency, told) for urgency in (5, 0, 3)]

        def register() -> None:
            for pipe in pipes:
                loop.register(pipe.end, pipe)

        loop.call(register)
        assert [told.get(timeout=WAIT_S) for _ in pipes] == [0, 3, 5]
    for pipe in pipes:
        pipe.close()


def test_timers_run_in_order() -> None:
    told: Queue[str] = Queue()
    with running() as (loop, _):

        def arm() -> None:
            loop.after(0.02, lambda: told.put("late"))
            loop.after(0.01, lambda: told.put("early"))

        loop.call(arm)
        assert [told.get(timeout=WAIT_S) for _ in range(2)] == ["early", "late"]


def test_an_end_is_told_once_and_calls_after_it_are_in_vain() -> None:
    with running() as (loop, ended):
        loop.call(loop.stop)
        assert ended.get(timeout=WAIT_S) is False
        loop.call(lambda: ended.put(True))
    assert ended.empty()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_crash_is_told() -> None:
    def crash() -> None:
        raise ZeroDivisionError

    with running() as (loop, ended):
        loop.call(crash)
        assert ended.get(timeout=WAIT_S) is True


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_child_keeps_no_connection_open() -> None:
    ours, theirs = socket.socketpair()
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(WAIT_S,))
    with ours, theirs, running() as (loop, _):
        pipe = Pipe(loop, 1, Queue())
        loop.register(ours.fileno(), pipe)
        child.start()
        loop.unregister(ours.fileno())
        ours.close()
        theirs.settimeout(WAIT_S / 3)
        try:
            assert theirs.recv(1) == b""
            assert child.is_alive()
        finally:
            child.kill()
            child.join()
            pipe.close()
