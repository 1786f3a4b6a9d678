import os

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p3_agent import messages
from p3_agent.messages import (
    MAX_REPLY,
    MAX_REQUEST,
    Bands,
    Confirm,
    ControlError,
    Done,
    GetBands,
    GetStatus,
    Hello,
    Reconcile,
    Refusal,
    RegisterJob,
    SetRate,
    Welcome,
    decode_reply,
    decode_request,
    encode,
)

REQUESTS = (
    Hello(),
    GetBands(),
    GetStatus(),
    Reconcile(),
    SetRate("10gbit"),
    Confirm(),
    RegisterJob("vgg/19"),
)
REPLIES = (
    Welcome(1, "0.1", 7, "eth0"),
    Bands((41, 39), 0.1, False),
    Done(("one", "two")),
    Refusal("failed", "because"),
)


@pytest.mark.parametrize("request_", REQUESTS, ids=repr)
def test_requests_round_trip(request_: messages.AnyRequest) -> None:
    assert decode_request(encode(request_)) == request_


@pytest.mark.parametrize("reply", REPLIES, ids=repr)
def test_replies_round_trip(reply: messages.AnyReply) -> None:
    assert decode_reply(encode(reply)) == reply


@pytest.mark.parametrize(
    "data",
    [
        b"x",
        b"[]",
        b"{}",
        b'{"type":"other"}',
        b'{"type":"hello","protocol":-1}',
        b'{"type":"hello","protocol":"1"}',
        b'{"type":"bands","more":1}',
        b'{"type":"set-rate"}',
        b'{"type":"set-rate","rate":""}',
        b'{"type":"set-rate","rate":"' + b"9" * 33 + b'"}',
        b'{"type":"bands"}{"type":"bands"}',
        b'{"type":"job","name":""}',
        b'{"type":"job","name":"-x"}',
        b'{"type":"job","name":"two\\nlines"}',
        b'{"type":"job","name":"' + b"x" * 49 + b'"}',
        b'{"z":' + b"[" * (MAX_REQUEST - 5),
        b'{"type":"hello\xff"}',
    ],
)
def test_malformed_requests_are_refused(data: bytes) -> None:
    with pytest.raises(ControlError) as caught:
        decode_request(data)
    assert caught.value.code == "malformed"
    assert caught.value.reason


def test_sizes_are_bounded() -> None:
    with pytest.raises(ControlError) as caught:
        decode_request(b" " * (MAX_REQUEST + 1))
    assert caught.value.code == "too-large"
    with pytest.raises(ControlError) as caught:
        decode_reply(b" " * (MAX_REPLY + 1))
    assert caught.value.code == "bad-reply"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)
TAGGED = st.fixed_dictionaries(
    {"type": st.sampled_from(["hello", "bands", "status", "reconcile", "set-rate", "error"])},
    optional={"protocol": JSON, "rate": JSON, "code": JSON, "reason": JSON},
)


@given(st.binary(max_size=200) | (JSON | TAGGED).map(msgspec.json.encode))
def test_any_bytes_are_a_message_or_a_control_error(data: bytes) -> None:
    for decode in (decode_request, decode_reply):
        try:
            decode(data)
        except ControlError as error:
            assert error.code in ("malformed", "bad-reply")


def test_the_socket_path_given_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("P3_AGENT_SOCKET", raising=False)
    assert messages.socket_path() == "/run/p3-agent/control.sock"
    monkeypatch.setenv("P3_AGENT_SOCKET", "/tmp/other.sock")
    assert messages.socket_path() == "/tmp/other.sock"
    assert messages.socket_path(os.path.join("a", "b")) == "a/b"  # noqa: PTH118
