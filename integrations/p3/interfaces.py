"""The addresses of a network interface, with the standard library alone. Linux."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from pathlib import Path

_SIOCGIFADDR = 0x8915
_IFREQ = struct.Struct("16s2sH4s16x")
"""struct ifreq with a sockaddr_in in it (netdevice(7)): name, family, port, address."""
_IF_INET6 = Path("/proc/self/net/if_inet6")


def addresses_of(interface: str) -> tuple[str, ...]:
    """Its first IPv4 address, then its IPv6 addresses that are good beyond the link.

    Raises OSError, with what to do in its text, when there is no such interface or no address.
    """
    names = [name for _, name in socket.if_nameindex()]
    if interface not in names:
        raise OSError(f"there is no interface {interface!r}: choose one of {', '.join(names)}")
    found = (*_ipv4(interface), *_ipv6(interface))
    if not found:
        raise OSError(
            f"interface {interface} has no address that other nodes can reach: give it one, or "
            "choose another interface"
        )
    return found


def _ipv4(interface: str) -> tuple[str, ...]:
    request = _IFREQ.pack(interface.encode(), b"", 0, b"")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            answer = fcntl.ioctl(asking, _SIOCGIFADDR, request)
        except OSError:  # EADDRNOTAVAIL: it has none
            return ()
    return (socket.inet_ntoa(_IFREQ.unpack(answer)[3]),)


def _ipv6(interface: str) -> tuple[str, ...]:
    """Lines of the file: address, index, prefix length, scope, flags (hexadecimal), name."""
    if not _IF_INET6.exists():  # a kernel without IPv6
        return ()
    lines = [line.split() for line in _IF_INET6.read_text().splitlines()]
    addresses = [
        ipaddress.IPv6Address(int(words[0], 16)) for words in lines if words[5] == interface
    ]
    return tuple(str(address) for address in addresses if not address.is_link_local)
