"""Two ranks' transports on loopback; the receiver starts when the sender's sockets are full."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import Queue

import pytest

from p3.engine import P3Error, PeerLostError
from p3.loop import Loop
from p3.mesh import Identity, Link, join
from p3.rendezvous import announce, job_key
from p3.schedule import Schedule
from p3.transport import Transport
from p3.wire import (
    ErrorCode,
    FrameType,
    NoteReceived,
    PayloadEnds,
    PayloadStarts,
    RemoteError,
    SliceTable,
)
from p3_shaper.bands import default_table

SIZE = 1 << 20
SLICES = 40
SCHEDULE = Schedule(layers=100, cuts=(10, 20))
"""Three bands: layers 0 to 9, 10 to 19, and later ones."""
TABLE = SliceTable([SIZE] * SLICES, [1] * SLICES, world_size=2)
WAIT_S = 30

Told = int | str | P3Error


class Side:
    """One rank's transport and what it tells, in order: slices, ends, errors."""

    def __init__(self, rank: int, links: list[Link]) -> None:
        self.told: Queue[Told] = Queue()
        self.loop = Loop("side", lambda _: self.transport.close())
        self.transport = Transport(links, SCHEDULE, self.loop, self, rank=rank, windows={})
        self.started = False
        self.refuse: str | None = None
        self._buffers: dict[int, bytearray] = {}

    def starts(self, peer: int, event: PayloadStarts) -> memoryview:
        assert peer == 0
        if self.refuse is not None:
            raise RemoteError(ErrorCode.PROTOCOL, self.refuse)
        buffer = self._buffers[event.index] = bytearray(SIZE)
        return memoryview(buffer)

    def ends(self, peer: int, event: PayloadEnds) -> None:
        assert peer == 0
        assert self._buffers.pop(event.index) == bytes([event.index]) * SIZE
        self.told.put(event.index)

    def noted(self, peer: int, event: NoteReceived) -> None:
        raise AssertionError(peer, event)

    def left(self, peer: int) -> None:
        self.told.put(f"rank {peer} left")

    def failed(self, error: P3Error) -> None:
        self.told.put(error)

    def start(self) -> None:
        self.started = True
        self.loop.start()

    def next(self) -> Told:
        return self.told.get(timeout=WAIT_S)

    def do(self, call: Callable[[], None]) -> None:
        """Run `call` in the loop's thread and wait for it."""
        done = threading.Event()
        self.loop.call(lambda: (call(), done.set())[0])  # type: ignore[func-returns-value]
        assert done.wait(WAIT_S)

    def send(self, *dues: int, first: int = 0) -> None:
        """Send slice `first` and the following ones, due when `dues` say, to rank 1."""

        def send() -> None:
            for index, due in enumerate(dues, first):
                view = memoryview(bytes([index]) * SIZE)
                self.transport.send(
                    1, kind=FrameType.PUSH, index=index, iteration=0, due=due, view=view
                )

        self.do(send)


@contextmanager
def two_sides() -> Iterator[tuple[Side, Side]]:
    """Sender, its loop running, and receiver, which a test starts."""
    barrier = threading.Barrier(2, timeout=WAIT_S)
    said: list[object] = [None, None]
    bands = default_table().bands[: SCHEDULE.bands]

    def connect(rank: int) -> list[Link]:
        def exchange(mine: object) -> list[object]:
            said[rank] = mine
            barrier.wait()
            return list(said)

        listeners, endpoints = announce(exchange, "127.0.0.1", bands, port=0)
        identity = Identity(rank, job_key(endpoints), b"d" * 32, "", TABLE)
        return join(identity, endpoints, listeners, bands, timeout=WAIT_S)

    with ThreadPoolExecutor(2) as pool:
        sender, receiver = itertools.starmap(Side, enumerate(pool.map(connect, range(2))))
    sender.start()
    try:
        yield sender, receiver
    finally:
        if not receiver.started:
            receiver.start()
        for side in (sender, receiver):
            side.loop.call(side.loop.stop)
            side.loop.join(WAIT_S)


def test_the_most_urgent_leaves_first_and_equals_in_turn() -> None:
    with two_sides() as (sender, receiver):
        filling = [90] * 20
        sender.send(*filling)
        sender.send(95, 60, 70, 60, first=20)
        receiver.start()
        got = [receiver.next() for _ in range(24)]
    # Those that were begun before come first.
    assert got.index(21) < got.index(23) < got.index(22) < got.index(19) < got.index(20) == 23


def test_an_urgent_slice_passes_a_full_socket() -> None:
    with two_sides() as (sender, receiver):
        sender.send(*[90] * 20)
        sender.send(5, first=20)
        receiver.start()
        got = [receiver.next() for _ in range(21)]
    assert got.index(20) < 10


def test_what_is_still_owed_becomes_most_urgent_when_it_is_due() -> None:
    with two_sides() as (sender, receiver):
        sender.send(*[90] * 20)
        waiting = sender.transport.waiting(1)
        assert waiting[2] > 0
        sender.do(lambda: sender.transport.advance(89))
        assert sender.transport.waiting(1)[2] > 0
        sender.do(lambda: sender.transport.advance(90))
        assert sender.transport.waiting(1)[1:] == (0, 0)
        receiver.start()
        assert {receiver.next() for _ in range(20)} == set(range(20))


def test_a_conclusion_sends_what_waits_and_says_bye() -> None:
    with two_sides() as (sender, receiver):
        sender.send(90, 5, 50)
        sender.loop.call(sender.transport.conclude)
        receiver.start()
        assert {receiver.next() for _ in range(3)} == {0, 1, 2}
        assert receiver.next() == "rank 0 left"
        sender.loop.join(WAIT_S)
        assert sum(sender.transport.payload_bytes_by_band) == 3 * SIZE
    assert sender.told.empty()


def test_what_is_sent_to_a_rank_that_left_is_dropped() -> None:
    with two_sides() as (sender, receiver):
        sender.send(90, 90, 90)
        receiver.start()
        receiver.loop.call(receiver.transport.conclude)
        assert sender.next() == "rank 1 left"
        sent: Queue[int] = Queue()

        def send() -> None:
            sender.transport.send(
                1,
                kind=FrameType.PUSH,
                index=0,
                iteration=0,
                due=1,
                view=memoryview(bytes(SIZE)),
                on_sent=lambda: sent.put(1),
            )

        sender.do(send)
        assert sent.get(timeout=WAIT_S) == 1
        assert sender.transport.waiting(1) == (0, 0, 0)


def test_a_refusal_is_told_at_both_ends() -> None:
    with two_sides() as (sender, receiver):
        receiver.refuse = "slice 0 is not wanted"
        sender.send(90)
        receiver.start()
        for side in (sender, receiver):
            error = side.next()
            assert isinstance(error, P3Error)
            assert "rank 0 at 127.0.0.1" in str(error)
            assert "slice 0 is not wanted" in str(error)


def test_a_connection_that_ends_without_a_word_is_a_lost_rank() -> None:
    with two_sides() as (sender, receiver):
        receiver.start()
        receiver.do(receiver.transport.close)
        error = sender.next()
        assert isinstance(error, PeerLostError)
        assert "rank 1 at 127.0.0.1" in str(error)


def test_the_first_error_is_the_one_told() -> None:
    with two_sides() as (sender, receiver):
        receiver.start()
        first, second = PeerLostError("rank 7 is lost"), P3Error("and more")
        sender.do(lambda: sender.transport.fail(first, ErrorCode.PEER_LOST))
        sender.loop.call(lambda: sender.transport.fail(second))
        heard = receiver.next()
        assert isinstance(heard, PeerLostError)
        assert str(heard) == str(first)
        assert sender.next() is first
    assert sender.told.empty()


@pytest.mark.parametrize("due", [0, 39, 40, 1000])
def test_every_band_can_be_used(due: int) -> None:
    with two_sides() as (sender, receiver):
        receiver.start()
        sender.send(due)
        assert receiver.next() == 0
