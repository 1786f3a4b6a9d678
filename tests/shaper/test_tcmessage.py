"""Netlink messages about traffic control, as bytes and back."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p3_shaper import tcmessage
from p3_shaper.tcmessage import TC_ROOT, Object, TcMessage, attribute

U32 = st.integers(0, 2**32 - 1)
CHAINS = st.one_of(st.just(0), U32)
OPTIONS = st.one_of(st.none(), st.binary(max_size=100))
KINDS = st.sampled_from(["", "htb", "dualpi2"])
MESSAGES = st.builds(
    lambda kind, handle, parent, name, options, chain: TcMessage(
        kind, handle, parent, name, options, handle if kind is Object.FILTER else 0, chain
    ),
    st.sampled_from(Object),
    U32,
    U32,
    KINDS,
    OPTIONS,
    CHAINS,
)


@settings(deadline=None)
@given(MESSAGES)
def test_messages_read_back_as_they_were_packed(message: TcMessage) -> None:
    index, read, _ = tcmessage.parse(message.object, message.payload(7))
    assert (index, read) == (7, message)


def test_rewriting_changes_and_drops_attributes_and_keeps_their_flags() -> None:
    nested = 0x8000
    data = attribute(1 | nested, b"abc") + attribute(2, b"12345678") + attribute(3, b"z")
    changes = {1: b"abcde", 2: None, 3: b"z"}
    assert tcmessage.rewrite(data, lambda number, _: changes[number]) == (
        attribute(1 | nested, b"abcde") + attribute(3, b"z")
    )


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_attributes_cut_off_are_errors_and_nothing_worse(data: bytes) -> None:
    try:
        for _, value in tcmessage.attributes(data):
            assert len(value) <= len(data)
    except ValueError as error:
        assert "cut off" in str(error)


@pytest.mark.parametrize(
    ("handle", "text"),
    [(0x70330000, "7033:"), (0x7033001F, "7033:1f"), (TC_ROOT, "root"), (0xFFFF0000, "ffff:")],
)
def test_handles_are_written_as_tc_writes_them(handle: int, text: str) -> None:
    assert tcmessage.handle_text(handle) == text
