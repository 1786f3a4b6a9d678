"""What an ICMP error quotes, read by scapy; the one module that imports it."""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from p3_agent.errors import AgentError
from p3_agent.probe.values import Kind, Version


@dataclass(frozen=True, slots=True)
class Quote:
    """A UDP datagram that an ICMP error quotes; `length` is its UDP header's."""

    kind: Kind
    reason: str
    tos: int
    target: str
    source_port: int
    target_port: int
    length: int


Reader: TypeAlias = Callable[[bytes], Quote | None]
"""Reads what a raw ICMP socket gives: None for anything but an error about a whole UDP header."""


def reader(version: Version) -> Reader:
    """A reader for one IP version; AgentError without scapy.

    An IPv4 socket gives the outer IP header too (raw(7)), an IPv6 one does not (RFC 3542, 3.1).
    """
    logging.getLogger("scapy").setLevel(logging.ERROR)  # it warns of interfaces we never use
    try:
        return _reader4() if version == 4 else _reader6()
    except ImportError as error:
        raise AgentError(f"probing needs scapy ({error}): pip install 'scapy>=2.6'") from error


def _reader4() -> Reader:
    from scapy.layers.inet import ICMP, IP, IPerror, UDPerror  # noqa: PLC0415

    def read(message: bytes) -> Quote | None:
        packet = IP(message)
        if not (ICMP in packet and IPerror in packet and UDPerror in packet):
            return None
        icmp, quoted, udp = packet[ICMP], packet[IPerror], packet[UDPerror]
        kind = _kind((icmp.type, icmp.code), passed=(11, 0), unreachable=3, closed=3)
        reason = str(icmp.sprintf("%ICMP.code%"))
        ports = (int(udp.sport), int(udp.dport))
        if kind is None:
            return None
        return Quote(kind, reason, int(quoted.tos), str(quoted.dst), *ports, int(udp.len))

    return _whole(read)


def _reader6() -> Reader:
    from scapy.layers.inet import UDPerror  # noqa: PLC0415
    from scapy.layers.inet6 import ICMPv6DestUnreach, ICMPv6TimeExceeded, IPerror6  # noqa: PLC0415

    layers = {1: ICMPv6DestUnreach, 3: ICMPv6TimeExceeded}

    def read(message: bytes) -> Quote | None:
        layer = layers.get(message[0])
        if layer is None:
            return None
        icmp = layer(message)
        if not (IPerror6 in icmp and UDPerror in icmp):
            return None
        quoted, udp = icmp[IPerror6], icmp[UDPerror]
        kind = _kind((icmp.type, icmp.code), passed=(3, 0), unreachable=1, closed=4)
        reason = str(icmp.sprintf(f"%{layer.__name__}.code%"))
        ports = (int(udp.sport), int(udp.dport))
        if kind is None:
            return None
        return Quote(kind, reason, int(quoted.tc), str(quoted.dst), *ports, int(udp.len))

    return _whole(read)


def _whole(read: Reader) -> Reader:
    """A reader that takes what is cut short, or no packet at all, for what it is."""

    def guarded(message: bytes) -> Quote | None:
        try:
            return read(message)
        except (struct.error, IndexError, TypeError, ValueError):
            return None

    return guarded


def _kind(
    found: tuple[int, int], passed: tuple[int, int], unreachable: int, closed: int
) -> Kind | None:
    """What an ICMP type and code say of a probe (RFC 792, RFC 4443)."""
    if found == passed:
        return Kind.PASSED
    if found[0] != unreachable:
        return None
    return Kind.CLOSED if found[1] == closed else Kind.REFUSED
