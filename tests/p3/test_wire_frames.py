from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p3.wire import ErrorCode, FrameType, Header, Hello, LocalError, RemoteError
from p3.wire.frames import (
    DIGEST_BYTES,
    HEADER_BYTES,
    MAX_ERROR_BYTES,
    MAX_ITERATION,
    MAX_SETTINGS_BYTES,
    NONCE_BYTES,
    decode_error,
    decode_header,
    decode_hello,
    encode_error,
)

U16 = st.integers(0, 2**16 - 1)
U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, MAX_ITERATION)
PAYLOADS = st.sampled_from([FrameType.PUSH, FrameType.SUM])
HELLOS = st.builds(
    Hello,
    st.binary(min_size=NONCE_BYTES, max_size=NONCE_BYTES),
    st.binary(min_size=DIGEST_BYTES, max_size=DIGEST_BYTES),
    U32,
    U16,
    st.text(max_size=MAX_SETTINGS_BYTES // 4),
)


@given(PAYLOADS, U32, U64, U64)
def test_a_header_comes_back(kind: FrameType, index: int, iteration: int, length: int) -> None:
    header = Header(kind, index, iteration, length)
    encoded = header.encode()
    assert len(encoded) == HEADER_BYTES
    assert decode_header(encoded) == header


@given(HELLOS)
def test_a_hello_comes_back(hello: Hello) -> None:
    encoded = hello.encode()
    header = decode_header(encoded[:HEADER_BYTES])
    assert header.type is FrameType.HELLO
    assert header.length == len(encoded) - HEADER_BYTES
    assert decode_hello(encoded[HEADER_BYTES:]) == hello


@given(st.sampled_from(ErrorCode), st.text(max_size=2 * MAX_ERROR_BYTES))
def test_an_error_comes_back_as_far_as_it_fits(code: ErrorCode, text: str) -> None:
    encoded = encode_error(code, text)
    header = decode_header(encoded[:HEADER_BYTES])
    body = encoded[HEADER_BYTES:]
    assert header.length == len(body) <= MAX_ERROR_BYTES
    assert decode_error(header, body)[0] is code
    if len(text.encode("utf-8", "replace")) <= MAX_ERROR_BYTES:
        assert decode_error(header, body)[1] == text.encode("utf-8", "replace").decode()


@given(st.binary(min_size=HEADER_BYTES, max_size=HEADER_BYTES))
def test_any_24_bytes_are_a_header_or_refused(data: bytes) -> None:
    try:
        header = decode_header(data)
    except RemoteError:
        return
    assert header.encode() == data


@pytest.mark.parametrize(
    ("data", "code", "reason"),
    [
        (b"GET / HTTP/1.1\r\nHost: xyz", ErrorCode.PROTOCOL, "starts with b'GE'"),
        (b"P3\x01\x02" + bytes(20), ErrorCode.VERSION, "version 1, here 2"),
        (b"P3\x02\xff" + bytes(20), ErrorCode.PROTOCOL, "unknown frame type 255"),
        (b"P3\x02\x01" + bytes(20), ErrorCode.PROTOCOL, "HELLO with 0 bytes"),
        (b"P3\x02\x04" + bytes(19) + b"\x01", ErrorCode.PROTOCOL, "BYE with 1 bytes"),
        (b"P3\x02\x04" + bytes(11) + b"\x01" + bytes(8), ErrorCode.PROTOCOL, "iteration 1"),
        (b"P3\x02\x04\x00\x00\x00\x05" + bytes(16), ErrorCode.PROTOCOL, "names slice 5"),
        (b"P3\x02\x06" + bytes(19) + b"\x21", ErrorCode.PROTOCOL, "PROOF with 33 bytes"),
        (b"P3\x02\x07" + bytes(19) + b"\x01", ErrorCode.PROTOCOL, "PING with 1 bytes"),
        (b"P3\x02\x05" + bytes(12) + b"\xff" * 8, ErrorCode.PROTOCOL, "ERROR with 1844"),
    ],
)
def test_malformed_headers_are_refused_with_a_reason(
    data: bytes, code: ErrorCode, reason: str
) -> None:
    with pytest.raises(RemoteError, match=reason) as refused:
        decode_header(data[:HEADER_BYTES])
    assert refused.value.code is code


def test_an_error_code_of_a_later_release_is_still_an_error() -> None:
    assert decode_error(Header(FrameType.ERROR, 77, 0, 2), b"no") == (ErrorCode.PROTOCOL, "no")


def test_settings_that_are_no_text_are_refused() -> None:
    body = Hello(bytes(NONCE_BYTES), bytes(DIGEST_BYTES), 1, 2, "ok").encode()[HEADER_BYTES:]
    with pytest.raises(RemoteError, match="not UTF-8"):
        decode_hello(body[:-1] + b"\xff")


@pytest.mark.parametrize(
    "hello",
    [
        Hello(b"short", bytes(DIGEST_BYTES), 0, 0, ""),
        Hello(bytes(NONCE_BYTES), b"short", 0, 0, ""),
        Hello(bytes(NONCE_BYTES), bytes(DIGEST_BYTES), -1, 0, ""),
        Hello(bytes(NONCE_BYTES), bytes(DIGEST_BYTES), 0, 2**16, ""),
        Hello(bytes(NONCE_BYTES), bytes(DIGEST_BYTES), 0, 0, "x" * (MAX_SETTINGS_BYTES + 1)),
    ],
)
def test_our_own_nonsense_is_a_local_error(hello: Hello) -> None:
    with pytest.raises(LocalError):
        hello.encode()


def test_a_header_that_does_not_fit_is_a_local_error() -> None:
    with pytest.raises(LocalError, match="does not fit"):
        Header(FrameType.PUSH, 2**32).encode()
