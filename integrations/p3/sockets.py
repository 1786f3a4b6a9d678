"""TCP sockets as both engines want them: marked with a band's DSCP, tuned for preempted streams.

No privilege is needed for anything here.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
from dataclasses import dataclass

CONGESTION = b"reno"
"""Cubic's HyStart takes the jitter of a preempted band for congestion and leaves slow start at
about 10 packets, where the socket then stays. Reno has no HyStart and is always allowed."""

UNSENT_BYTES = 128 << 10
"""What the kernel may hold unsent in one socket: nothing can be reordered in there, so it is kept
to a few milliseconds at 1 Gbit/s. Left alone, it would be 2 MB."""

TCP_RTO_MAX_MS = 44
"""Linux 6.15 and later (include/uapi/linux/tcp.h); Python has no name for it yet."""

_SO_ATTACH_FILTER = 26
_KEEP_NOTHING = struct.pack("HBBI", 0x06, 0, 0, 0)
"""struct sock_filter: BPF_RET | BPF_K, 0 bytes (include/uapi/linux/filter.h)."""

MIN_RECEIVE_BUFFER = 256 << 10

ECN_MASK = 0x03


@dataclass(frozen=True, slots=True)
class Address:
    """An IP address (never a name) and a TCP port."""

    host: str
    port: int

    @property
    def family(self) -> socket.AddressFamily:
        """AF_INET6 when the address has a colon."""
        return socket.AF_INET6 if ":" in self.host else socket.AF_INET

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def mark(sock: socket.socket, dscp: int) -> None:
    """Give every packet of `sock` the 6-bit `dscp`, ECN bits clear. 0 unmarks. OSError as ever.

    On a connected socket it counts from the next packet on. An accepted socket does not reliably
    inherit its listener's mark: mark it again. An IPv6 socket gets both marks, since it may carry
    IPv4 (v4-mapped addresses).
    """
    tos = (dscp << 2) & ~ECN_MASK & 0xFF
    if sock.family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, tos)
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos)


def dscp_of(sock: socket.socket) -> int:
    """The DSCP that `sock` marks its packets with."""
    if sock.family == socket.AF_INET6:
        return sock.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS) >> 2
    return sock.getsockopt(socket.IPPROTO_IP, socket.IP_TOS) >> 2


def tune(sock: socket.socket, *, unsent_bytes: int = UNSENT_BYTES) -> None:
    """Options for a stream that other bands preempt; may be called at any time, also twice.

    The stream is ready for writing only while less than `unsent_bytes` / 2 wait unsent in it.
    """
    # An administrator can take reno away; training is slower then, not wrong.
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, CONGESTION)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, unsent_bytes)


def limit_silence(sock: socket.socket, seconds: float) -> None:
    """Have the kernel end `sock` after about twice `seconds` without an answer from the peer's.

    Twice: who is alive is for those to tell who know all of a peer's connections; one alone may
    starve in its band. A connection that was cut is tried again within an eighth of `seconds`
    (1 s at least; kernels before 6.15 take up to as long as the cut was).
    """
    milliseconds = int(seconds * 1000)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 2 * milliseconds)
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.IPPROTO_TCP, TCP_RTO_MAX_MS, max(1000, milliseconds // 8))
    # An idle connection must stay known to firewalls on its way.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, int(seconds / 3)))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, int(seconds / 6)))


def limit_window(sock: socket.socket, window: int) -> None:
    """Offer the peer a receive window of `window` bytes at most, though never under 4 segments.

    Bytes that wait here for the program do not count: while it is busy, the peer goes on, up to
    the kernel's limit for receive buffers (net.core.rmem_max). Say it again from time to time:
    the kernel forgets it when segments of another size come (tcp_measure_rcv_mss, Linux 6.x).
    """
    segment = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)
    # A buffer of a fixed size: one that the kernel sizes takes the window along.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, max(4 * window, MIN_RECEIVE_BUFFER))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_WINDOW_CLAMP, max(window, 4 * segment))


def listen(address: Address, dscp: int, *, backlog: int = 128) -> socket.socket:
    """A non-blocking listener at `address` (port 0: any free one), marked before it listens.

    So the SYN-ACK is marked too. Raises OSError, with the address in its text.
    """
    sock = _new(address, dscp)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address.host, address.port))
        sock.listen(backlog)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise OSError(error.errno, f"cannot listen at {address}: {error.strerror}") from error
    return sock


def accept(listener: socket.socket, dscp: int) -> tuple[socket.socket, Address]:
    """The next connection, non-blocking, tuned and marked, and the peer's address.

    BlockingIOError when there is none.
    """
    sock, peer = listener.accept()
    try:
        sock.setblocking(False)
        tune(sock)
        mark(sock, dscp)
    except OSError:
        sock.close()
        raise
    return sock, Address(str(peer[0]), int(peer[1]))


def start_connect(address: Address, dscp: int) -> socket.socket:
    """A non-blocking socket that connects, marked before its SYN; writable when it is decided.

    `finish_connect` tells then how. Raises OSError, with the address in its text.
    """
    sock = _new(address, dscp)
    try:
        sock.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            sock.connect((address.host, address.port))
    except OSError as error:
        sock.close()
        raise OSError(error.errno, f"cannot connect to {address}: {error.strerror}") from error
    return sock


def finish_connect(sock: socket.socket, address: Address) -> None:
    """Raises OSError, with the address in its text, unless `sock` is connected."""
    number = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if number:
        raise OSError(number, f"cannot connect to {address}: {os.strerror(number)}")


def deafen(listener: socket.socket) -> None:
    """Have the kernel drop whatever comes for `listener` from now on; its connections live on.

    For a listener of a library's that must stay open: to it, nobody connects any more. A filter
    that keeps no byte of a packet drops it (socket(7), SO_ATTACH_FILTER; needs no privilege).
    """
    instruction = ctypes.create_string_buffer(_KEEP_NOTHING, len(_KEEP_NOTHING))
    program = struct.pack("HP", 1, ctypes.addressof(instruction))
    listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)


def address_towards(host: str) -> str:
    """Our own IP address on the route to `host` (name or address). Sends nothing.

    Raises OSError when there is no route or no such name.
    """
    found = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
    failure: OSError | None = None
    for family, kind, protocol, _, target in found:
        with socket.socket(family, kind, protocol) as probe:
            try:
                probe.connect(target)
            except OSError as error:
                failure = error
                continue
            return str(probe.getsockname()[0])
    raise OSError(f"no route to {host}: {failure}")


def bound_address(sock: socket.socket) -> Address:
    """Where `sock` is bound."""
    name = sock.getsockname()
    return Address(str(name[0]), int(name[1]))


def _new(address: Address, dscp: int) -> socket.socket:
    sock = socket.socket(address.family, socket.SOCK_STREAM)
    try:
        mark(sock, dscp)
        tune(sock)
    except OSError:
        sock.close()
        raise
    return sock
