"""The sockets of a network namespace, with their marks: what `ss` reads (sock_diag(7)).

Reading needs no privilege. pyroute2's DiagSocket is not used: it takes the kernel's refusals for
sockets of IPv4, since NLMSG_ERROR and AF_INET are the same number. Sources: linux/inet_diag.h,
linux/tcp.h (struct tcp_info grows at its end).
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from p3_shaper.errors import TcError, no_namespace, refused
from p3_shaper.namespace import socket_in
from p3_shaper.tcmessage import attributes

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_NLM_F_REQUEST, _NLM_F_DUMP = 0x1, 0x300
_RECEIVE = 1 << 16

_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBxI48x")
_MESSAGE = struct.Struct("=BBxx2s2s16s16s12xIIIII")
_ERROR = struct.Struct("=i")

_INFO, _CONGESTION, _TOS, _TCLASS = 2, 4, 5, 6  # INET_DIAG_…
_EXTENSIONS = sum(1 << number - 1 for number in (_INFO, _CONGESTION, _TOS, _TCLASS))
_ESTABLISHED, _CLOSE, _LISTEN, _TIME_WAIT, _SYN_RECV = 1, 7, 10, 6, 3  # net/tcp_states.h
_ALL = (1 << 12) - 1
_TCP_STATES = _ALL & ~sum(1 << state for state in (_CLOSE, _LISTEN, _TIME_WAIT, _SYN_RECV))
_UDP_STATES = 1 << _ESTABLISHED | 1 << _CLOSE
_ASKED = (
    (socket.AF_INET, socket.IPPROTO_TCP, _TCP_STATES),
    (socket.AF_INET6, socket.IPPROTO_TCP, _TCP_STATES),
    (socket.AF_INET, socket.IPPROTO_UDP, _UDP_STATES),
    (socket.AF_INET6, socket.IPPROTO_UDP, _UDP_STATES),
)

_TOTAL_RETRANS = 100  # offsets in struct tcp_info
_NOTSENT_BYTES = 144
_BYTES_SENT = 200
_U32, _U64 = struct.Struct("=I"), struct.Struct("=Q")


@dataclass(frozen=True, slots=True)
class Socket:
    """One connected TCP socket, or a UDP socket.

    `inode` is what /proc/PID/fd shows. `address` and `peer` are "" where there is none. `queued`
    counts bytes that the peer has not acknowledged, `unsent` those of them that TCP has not sent
    yet; `sent` counts payload since the start, what was sent again included; `resent` counts
    segments. They are 0 for UDP, except `queued`. `congestion` names TCP's congestion control.
    """

    protocol: str
    inode: int
    uid: int
    address: str
    port: int
    peer: str
    peer_port: int
    dscp: int
    queued: int
    unsent: int = 0
    sent: int = 0
    resent: int = 0
    congestion: str = ""

    @property
    def is_ipv6(self) -> bool:
        """Whether its packets are IPv6's."""
        return ":" in self.peer

    @property
    def is_local(self) -> bool:
        """Whether its bytes stay on this machine's loopback: so do those to one's own address."""
        if not self.peer:
            return False
        return self.peer == self.address or ipaddress.ip_address(self.peer).is_loopback


def sockets(namespace: str | None = None) -> list[Socket]:
    """Every TCP connection and UDP socket of `namespace` (see `socket_in`; None: one's own).

    TcError when the kernel cannot tell; one without a family or protocol has no such sockets.
    """
    try:
        channel = socket_in(
            namespace, socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG
        )
    except OSError as error:
        raise no_namespace(namespace, error) from error
    with channel:
        try:
            return [
                found
                for family, protocol, states in _ASKED
                for body in _dump(channel, _REQUEST.pack(family, protocol, _EXTENSIONS, states))
                if (found := socket_of(protocol, body)) is not None
            ]
        except OSError as error:
            raise refused("list sockets", error) from error


def _dump(channel: socket.socket, request: bytes) -> Iterator[bytes]:
    flags = _NLM_F_REQUEST | _NLM_F_DUMP
    length = _HEADER.size + len(request)
    channel.send(_HEADER.pack(length, _SOCK_DIAG_BY_FAMILY, flags, 0, 0) + request)
    while True:
        data = channel.recv(_RECEIVE)
        for kind, body in messages(data):
            if kind == _NLMSG_DONE:
                return
            if kind == _NLMSG_ERROR:
                number = -_ERROR.unpack_from(body)[0]
                if number in (errno.ENOENT, errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT):
                    return  # the kernel has no such family, or no module that could tell
                raise OSError(number, os.strerror(number))
            yield body


def messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and body of each netlink message in `data`; TcError if it is cut off."""
    position = 0
    while position < len(data):
        if len(data) - position < _HEADER.size:
            raise TcError("the kernel's list of sockets is cut off: try again", errno.EPROTO)
        length, kind, *_ = _HEADER.unpack_from(data, position)
        if length < _HEADER.size or position + length > len(data):
            raise TcError("the kernel's list of sockets is cut off: try again", errno.EPROTO)
        yield kind, data[position + _HEADER.size : position + length]
        position += length + 3 & ~3


def socket_of(protocol: int, body: bytes) -> Socket | None:
    """The socket that a message's body (struct inet_diag_msg) tells of; None if it is cut off."""
    if len(body) < _MESSAGE.size:
        return None
    fields = _MESSAGE.unpack_from(body)
    family, _, port, peer_port, own, peer, _, _, queued, uid, inode = fields
    found = dict(attributes(body[_MESSAGE.size :]))
    address = _address(family, peer)
    mark = found.get(_TCLASS if ":" in address else _TOS, b"\0")
    info = found.get(_INFO, b"")
    return Socket(
        protocol="tcp" if protocol == socket.IPPROTO_TCP else "udp",
        inode=inode,
        uid=uid,
        address=_address(family, own),
        peer=address,
        port=int.from_bytes(port, "big"),
        peer_port=int.from_bytes(peer_port, "big"),
        dscp=mark[0] >> 2,
        queued=queued,
        unsent=_at(_U32, info, _NOTSENT_BYTES),
        sent=_at(_U64, info, _BYTES_SENT),
        resent=_at(_U32, info, _TOTAL_RETRANS),
        congestion=found.get(_CONGESTION, b"").rstrip(b"\0").decode("ascii", "replace"),
    )


def _address(family: int, raw: bytes) -> str:
    """As text; an IPv4 address where an IPv6 socket speaks to one, "" for none."""
    if family == socket.AF_INET:
        address: ipaddress.IPv4Address | ipaddress.IPv6Address = ipaddress.IPv4Address(raw[:4])
    else:
        wide = ipaddress.IPv6Address(raw)
        address = wide.ipv4_mapped or wide
    return "" if address.is_unspecified else str(address)


def _at(number: struct.Struct, info: bytes, offset: int) -> int:
    """A field of struct tcp_info; 0 where the kernel is too old to have it."""
    return int(number.unpack_from(info, offset)[0]) if len(info) >= offset + number.size else 0
