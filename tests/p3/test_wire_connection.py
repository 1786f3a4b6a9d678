from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p3.wire import (
    ByeReceived,
    Connection,
    ErrorCode,
    ErrorReceived,
    Event,
    FrameType,
    Header,
    Hello,
    HelloReceived,
    LocalError,
    NoteReceived,
    PayloadEnds,
    PayloadStarts,
    PeerProven,
    PingReceived,
    RemoteError,
    SliceTable,
    State,
)
from p3.wire.frames import encode_error

SIZES = (12, 1, 300)
SLICES = SliceTable(SIZES, servers=(0, 1, 0), world_size=3, states=(40, 40, 400))
KEY = b"the job's key"
ZERO = Hello(b"0" * 32, b"d" * 32, 0, 4, "7 bands")
ONE = replace(ZERO, nonce=b"1" * 32, rank=1)


class End:
    """One end, with buffers of its own: what arrives in them, and what happened."""

    def __init__(
        self,
        hello: Hello,
        peer: int | None = None,
        key: bytes = KEY,
        slices: SliceTable = SLICES,
    ) -> None:
        self.connection = Connection(hello, key, slices, peer)
        self.events: list[Event] = []
        self.payloads: list[bytes] = []
        self._buffer = bytearray()

    def feed(self, data: bytes, chunk: int = 1 << 20) -> None:
        """Let `data` arrive, `chunk` bytes at a time, as a socket would scatter it."""
        waiting = memoryview(data)
        while waiting:
            left = min(chunk, len(waiting))
            count = 0
            for buffer in self.connection.buffers():
                part = waiting[count : min(left, count + len(buffer))]
                buffer[: len(part)] = part
                count += len(part)
            assert count, "a buffer is never empty"
            waiting = waiting[count:]
            for event in self.connection.received(count):
                self._take(event)

    def _take(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, PayloadEnds):
            self.payloads.append(bytes(self._buffer))
        if isinstance(event, PayloadStarts):
            self._buffer = bytearray(SIZES[event.index])
            self.connection.place(memoryview(self._buffer))


def greeted(one: Hello = ONE, key: bytes = KEY, slices: SliceTable = SLICES) -> tuple[End, End]:
    """Both have said HELLO; rank 1, which connected, says `one` and knows `key`."""
    ends = End(ZERO, slices=slices), End(one, peer=0, key=key)
    ends[1].feed(ends[0].connection.hello())
    ends[0].feed(ends[1].connection.hello())
    return ends


def open_ends(slices: SliceTable = SLICES) -> tuple[End, End]:
    zero, one = greeted(slices=slices)
    one.feed(zero.connection.proof())
    zero.feed(one.connection.proof())
    for end in (zero, one):
        end.events.clear()
    return zero, one


def payload(end: End, kind: FrameType, index: int, iteration: int, fill: int) -> bytes:
    head = end.connection.payload(kind, index, iteration)
    return head + bytes([fill]) * SIZES[index]


SENT = st.lists(
    st.tuples(
        st.sampled_from([(FrameType.PUSH, 0), (FrameType.PUSH, 2), (FrameType.SUM, 1)]),
        st.integers(0, 2**64 - 1),
        st.integers(0, 255),
    ),
    max_size=8,
)


@given(SENT, st.integers(1, 400))
def test_payloads_arrive_whole_however_they_are_cut(
    sent: list[tuple[tuple[FrameType, int], int, int]], chunk: int
) -> None:
    zero, one = open_ends()
    stream = b"".join(payload(one, *frame, iteration, fill) for frame, iteration, fill in sent)
    zero.feed(stream + one.connection.bye(), chunk)
    want: list[Event] = []
    for (kind, index), iteration, _ in sent:
        want += [PayloadStarts(kind, index, iteration), PayloadEnds(kind, index, iteration)]
    assert zero.events == [*want, ByeReceived()]
    assert zero.payloads == [bytes([fill]) * SIZES[index] for (_, index), _, fill in sent]
    zero.connection.eof()


def test_hello_tells_each_end_who_the_other_is() -> None:
    zero, one = End(ZERO), End(ONE, peer=0)
    one.feed(zero.connection.hello(), chunk=1)
    zero.feed(one.connection.hello(), chunk=7)
    assert (zero.connection.peer, one.connection.peer) == (1, 0)
    assert zero.events == [HelloReceived(ONE)]
    zero.feed(one.connection.proof(), chunk=5)
    assert zero.events[1:] == [PeerProven()]
    assert zero.connection.theirs is State.OPEN


def test_a_payload_and_the_next_header_may_come_in_one_read() -> None:
    zero, one = open_ends()
    zero.feed(one.connection.payload(FrameType.PUSH, 0, 5))
    first, second = zero.connection.buffers()
    assert (len(first), len(second)) == (12, 24)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"rank": 3}, "hears a rank 3"),
        ({"rank": 0}, "hears a rank 0"),
        ({"band": 3}, "band 3 on a connection for band 4"),
    ],
)
def test_a_claim_that_cannot_be_is_refused(change: dict[str, object], reason: str) -> None:
    zero = End(ZERO)
    with pytest.raises(RemoteError, match=reason) as refused:
        zero.feed(replace(ONE, **change).encode())  # type: ignore[arg-type]
    assert refused.value.code is ErrorCode.PROTOCOL
    assert zero.connection.theirs is State.FAILED


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"digest": b"x" * 32}, "rank 1 cut the model into other slices"),
        ({"settings": "6 bands"}, r"rank 1 has settings \[6 bands\]"),
    ],
)
def test_a_proven_peer_that_differs_is_refused(change: dict[str, object], reason: str) -> None:
    zero, one = greeted(replace(ONE, **change))  # type: ignore[arg-type]
    with pytest.raises(RemoteError, match=reason) as refused:
        zero.feed(one.connection.proof())
    assert refused.value.code is ErrorCode.PLAN
    assert zero.connection.theirs is State.FAILED


def test_a_wrong_key_is_noticed_at_both_ends() -> None:
    zero, one = greeted(key=b"another job's")
    proofs = zero.connection.proof(), one.connection.proof()
    for end, proof in zip((one, zero), proofs, strict=True):
        with pytest.raises(RemoteError, match="does not prove the job's token") as refused:
            end.feed(proof)
        assert refused.value.code is ErrorCode.TOKEN


def test_a_proof_is_good_for_one_connection_and_one_role() -> None:
    _, one = greeted()
    recorded = one.connection.proof()
    fresh = replace(ZERO, nonce=b"2" * 32)
    again = End(fresh)
    again.feed(one.connection._hello.encode())  # as a stranger that recorded all would send it
    with pytest.raises(RemoteError, match="does not prove"):
        again.feed(recorded)
    zero, one = greeted()
    with pytest.raises(RemoteError, match="does not prove"):
        zero.feed(zero.connection.proof())  # as a stranger that echoes would


def test_the_key_does_not_travel() -> None:
    zero, one = greeted()
    said = one.connection._hello.encode() + one.connection.proof() + zero.connection.proof()
    assert KEY not in said


def test_the_wrong_rank_at_an_address_is_refused() -> None:
    end = End(ONE, peer=0)
    with pytest.raises(RemoteError, match="rank 2 answers in place of rank 0"):
        end.feed(replace(ZERO, rank=2).encode())


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (Header(FrameType.PUSH, 3, 0, 12), "PUSH of slice 3: there are 3 slices"),
        (Header(FrameType.PUSH, 0, 0, 13), "slice 0 has 13 bytes, not 12"),
        (Header(FrameType.PUSH, 0, 0, 2**63), "bytes, not 12"),
        (Header(FrameType.SUM, 1, 0, 0), "slice 1 has 0 bytes, not 1"),
        (Header(FrameType.PUSH, 1, 0, 1), "PUSH of slice 1 from rank 1 to rank 0: its server is"),
        (Header(FrameType.SUM, 0, 0, 12), "SUM of slice 0 from rank 1 to rank 0: its server is"),
    ],
)
def test_payloads_that_cannot_be_are_refused_before_they_are_read(
    frame: Header, reason: str
) -> None:
    zero, _ = open_ends()
    with pytest.raises(RemoteError, match=reason):
        zero.feed(frame.encode())
    assert zero.connection.theirs is State.FAILED


@pytest.mark.parametrize("chunk", [1, 30, 1 << 20])
def test_notes_arrive_whole_among_payloads(chunk: int) -> None:
    zero, one = open_ends()
    notes = [(FrameType.COMMIT, 0, 7, b"settings"), (FrameType.STATE, 2, 0, bytes(400))]
    notes += [(FrameType.NOTIFY, 1, 7, b""), (FrameType.PULL, 1, 7, b"")]
    notes += [(FrameType.FETCH, 0, 0, b""), (FrameType.DONE, 0, 0, b"")]
    for kind, index, iteration, body in notes:
        payload = one.connection.payload(FrameType.PUSH, 0, 7) + bytes(SIZES[0])
        note = one.connection.note(kind, index, iteration, len(body)) + body
        zero.feed(payload + note, chunk)
    came = [event for event in zero.events if isinstance(event, NoteReceived)]
    assert [(note.type, note.index, note.iteration, bytes(note.body)) for note in came] == notes
    assert len(zero.payloads) == len(notes)


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (Header(FrameType.STATE, 3, 0, 1), "STATE of 1 bytes for slice 3: too much"),
        (Header(FrameType.STATE, 1, 0, 41), "STATE of 41 bytes for slice 1: too much"),
        (Header(FrameType.COMMIT, 0, 0, 2**40), "COMMIT with 1099511627776 bytes"),
        (Header(FrameType.DONE, 0, 0, 1), "DONE with 1 bytes"),
        (Header(FrameType.COMMIT, 1, 0, 9), "COMMIT names slice 1"),
        (Header(FrameType.PULL, 3, 0), "PULL of no slice"),
        (Header(FrameType.NOTIFY, 1, 0, 4), "NOTIFY with 4 bytes"),
        (Header(FrameType.FETCH, 0, 1), "FETCH names iteration 1"),
    ],
)
def test_notes_that_cannot_be_are_refused_before_they_are_read(frame: Header, reason: str) -> None:
    zero, one = open_ends()
    with pytest.raises(RemoteError, match=reason):
        zero.feed(frame.encode())
    with pytest.raises(LocalError, match="cannot be sent"):
        zero.connection.note(FrameType.COMMIT, 0, 0, 1)
    with pytest.raises(LocalError, match="is no note"):
        one.connection.note(FrameType.PUSH, 0, 0, 12)


def test_servers_that_only_sum_take_no_notes() -> None:
    zero, one = open_ends(replace(SLICES, states=()))
    with pytest.raises(RemoteError, match="servers here only sum"):
        zero.feed(one.connection.note(FrameType.FETCH, 0, 0, 0))


@pytest.mark.parametrize("kind", [FrameType.PUSH, FrameType.SUM, FrameType.BYE])
def test_nothing_comes_before_hello(kind: FrameType) -> None:
    with pytest.raises(RemoteError, match=f"{kind.name} while GREETING"):
        End(ZERO).feed(Header(kind, 0, 0, 0).encode())


def test_payloads_come_from_the_end_that_connected() -> None:
    zero, one = open_ends()
    with pytest.raises(LocalError, match="SUM cannot be sent"):
        zero.connection.payload(FrameType.SUM, 0, 0)
    with pytest.raises(RemoteError, match="SUM while OPEN"):
        one.feed(Header(FrameType.SUM, 0, 0, SIZES[0]).encode())


@pytest.mark.parametrize("last", ["bye", "error"])
def test_nothing_comes_after_the_last_frame(last: str) -> None:
    zero, one = open_ends()
    end: Callable[[], bytes] = one.connection.bye
    if last == "error":
        end = lambda: one.connection.error(ErrorCode.INTERNAL, "")  # noqa: E731
    zero.feed(end())
    with pytest.raises(RemoteError, match="PUSH while"):
        zero.feed(Header(FrameType.PUSH, 0, 0, 12).encode())


def test_hello_comes_once() -> None:
    zero, _ = open_ends()
    with pytest.raises(RemoteError, match="HELLO while OPEN"):
        zero.feed(ONE.encode())


def test_a_sign_of_life_comes_at_any_time_from_both() -> None:
    zero, one = open_ends()
    zero.feed(one.connection.ping() + payload(one, FrameType.PUSH, 0, 1, 7) + one.connection.ping())
    one.feed(zero.connection.ping())
    assert zero.events[0] == zero.events[-1] == one.events[0] == PingReceived()


@pytest.mark.parametrize("said_hello", [False, True])
def test_a_stranger_s_error_is_not_believed(said_hello: bool) -> None:
    zero = greeted()[0] if said_hello else End(ZERO)
    with pytest.raises(RemoteError, match="ERROR while") as refused:
        zero.feed(encode_error(ErrorCode.PLAN, "end all"))
    assert refused.value.code is ErrorCode.PROTOCOL


def test_an_error_is_told_with_its_code() -> None:
    zero, one = open_ends()
    zero.feed(one.connection.error(ErrorCode.PLAN, "slices differ"), chunk=5)
    assert zero.events == [ErrorReceived(ErrorCode.PLAN, "slices differ")]
    zero.connection.eof()


@pytest.mark.parametrize("count", [1, 23, 24, 30])
def test_the_end_in_the_middle_of_a_frame_is_noticed(count: int) -> None:
    zero, one = open_ends()
    zero.feed(payload(one, FrameType.PUSH, 0, 1, 7)[:count])
    with pytest.raises(RemoteError, match="in the middle of a frame") as lost:
        zero.connection.eof()
    assert lost.value.code is ErrorCode.PEER_LOST


def test_the_end_without_a_bye_is_noticed() -> None:
    zero, _ = open_ends()
    with pytest.raises(RemoteError, match="without a BYE"):
        zero.connection.eof()


def test_what_we_may_not_send_is_a_local_error() -> None:
    connection = Connection(ZERO, KEY, SLICES)
    for forbidden in (
        connection.bye,
        connection.ping,
        connection.proof,
        lambda: connection.payload(FrameType.PUSH, 0, 0),
        lambda: connection.payload(FrameType.BYE, 0, 0),
    ):
        with pytest.raises(LocalError):
            forbidden()
    connection.hello()
    with pytest.raises(LocalError, match="answers a HELLO"):
        connection.proof()
    zero, _ = open_ends()
    zero.connection.bye()
    for forbidden in (zero.connection.bye, zero.connection.hello, zero.connection.ping):
        with pytest.raises(LocalError):
            forbidden()


def test_a_buffer_must_be_placed_and_fit() -> None:
    zero, one = open_ends()
    with pytest.raises(LocalError, match="no payload waits"):
        zero.connection.place(memoryview(bytearray(12)))
    head = one.connection.payload(FrameType.PUSH, 0, 0)
    zero.connection.buffers()[0][:] = head
    zero.connection.received(len(head))
    with pytest.raises(LocalError, match="waits for its buffer"):
        zero.connection.buffers()
    for wrong in (bytearray(11), bytes(12)):
        with pytest.raises(LocalError, match="cannot be received"):
            zero.connection.place(memoryview(wrong))


@given(st.binary(max_size=200), st.integers(1, 50), st.integers(0, 2))
def test_no_bytes_can_do_more_than_be_refused(data: bytes, chunk: int, far: int) -> None:
    end = (End(ZERO), greeted()[0], open_ends()[0])[far]
    try:
        end.feed(data, chunk)
        end.connection.eof()
    except RemoteError:
        assert end.connection.theirs is State.FAILED


@given(st.integers(0, 35), st.integers(1, 255))
def test_a_flipped_byte_is_refused_or_is_another_valid_frame(place: int, flip: int) -> None:
    zero, one = open_ends()
    data = bytearray(payload(one, FrameType.PUSH, 0, 3, 9) + one.connection.bye())
    data[place] ^= flip
    try:
        zero.feed(bytes(data))
    except RemoteError:
        assert zero.connection.theirs is State.FAILED
