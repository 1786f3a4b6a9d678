"""Sockets as the kernel lists them, beside what their owners did."""

from __future__ import annotations

import errno
import os
import socket

import pytest

from p3_shaper.errors import TcError
from p3_shaper.sockdiag import messages, socket_of, sockets

TOS = 41 << 2


def inode_of(end: socket.socket) -> int:
    return os.fstat(end.fileno()).st_ino


@pytest.mark.parametrize(
    ("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
)
def test_a_marked_connection_that_nobody_reads(family: socket.AddressFamily, address: str) -> None:
    with (
        socket.create_server((address, 0), family=family) as server,
        socket.socket(family) as sender,
    ):
        if family == socket.AF_INET:
            sender.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, TOS)
        else:
            sender.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, TOS)
        sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
        sender.connect(server.getsockname()[:2])
        sender.setblocking(False)
        written = 0
        try:
            while True:
                written += sender.send(bytes(1 << 16))
        except BlockingIOError:
            pass
        there = {item.inode: item for item in sockets()}
        seen = there[inode_of(sender)]
    assert (seen.protocol, seen.dscp, seen.congestion) == ("tcp", 41, "reno")
    assert (seen.peer, seen.is_local, seen.is_ipv6) == (address, True, family == socket.AF_INET6)
    assert seen.uid == os.getuid()
    assert 0 < seen.unsent <= seen.queued <= written
    assert seen.sent >= written - seen.unsent


def test_an_ipv6_socket_that_speaks_ipv4_has_its_ipv4_mark() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_INET6) as sender,
    ):
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, TOS)
        sender.connect((f"::ffff:{server.getsockname()[0]}", server.getsockname()[1]))
        seen = next(item for item in sockets() if item.inode == inode_of(sender))
    assert (seen.peer, seen.dscp, seen.is_ipv6) == ("127.0.0.1", 41, False)


def test_udp() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, TOS)
        sender.connect(("127.0.0.1", 9))
        seen = next(item for item in sockets() if item.inode == inode_of(sender))
    assert (seen.protocol, seen.peer_port, seen.dscp) == ("udp", 9, 41)


def test_what_is_cut_off() -> None:
    assert socket_of(socket.IPPROTO_TCP, bytes(71)) is None
    for data in (b"\x10", b"\x0f\0\0\0" + bytes(12), b"\x20\0\0\0" + bytes(12)):
        with pytest.raises(TcError) as caught:
            list(messages(data))
        assert caught.value.errno == errno.EPROTO


def test_a_namespace_that_is_not_there() -> None:
    with pytest.raises(TcError, match="no network namespace"):
        sockets("p3t-nowhere")
