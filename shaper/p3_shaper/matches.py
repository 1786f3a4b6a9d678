"""u32 matches for a DSCP and for pure TCP acknowledgements, IPv4 and IPv6. Pure.

By the DSCP field, never by skb priority: accepted sockets inherit the mark but not the priority.
Each match holds the version, so that a filter can take frames of every protocol: on the parent of
VLAN devices the protocol of a frame is 802.1Q, while its network header is still that of IP.
"""

from __future__ import annotations

from collections.abc import Sequence

from p3_shaper.parts import Match

_TCP = 6
_IPV6 = 6


def dscp_ipv4(dscp: int) -> tuple[Match, ...]:
    """RFC 791, second byte: DSCP, then two ECN bits that are masked out."""
    return (Match(offset=0, mask=0xF0FC_0000, value=0x4000_0000 | dscp << 18),)


def dscp_ipv6(dscp: int) -> tuple[Match, ...]:
    """RFC 8200: the traffic class is bits 4…11 of the first word, its last two are ECN."""
    return (Match(offset=0, mask=0xFFC0_0000, value=0x6000_0000 | dscp << 22),)


def ack_ipv4() -> tuple[Match, ...]:
    """A header of 20 bytes, under 128 bytes in all, TCP with ACK and no other flag but ECN's.

    128 rather than 64, since duplicate ACKs carry up to 40 bytes of SACK blocks and timestamps.
    """
    return (
        Match(offset=0, mask=0xFF00_FF80, value=0x4500_0000),
        Match(offset=8, mask=0x00FF_0000, value=_TCP << 16),
        Match(offset=32, mask=0x003F_0000, value=0x0010_0000),
    )


def ack_ipv6() -> tuple[Match, ...]:
    """A payload under 64 bytes that is TCP itself (no extension header), with ACK alone."""
    return (
        Match(offset=0, mask=0xF000_0000, value=0x6000_0000),
        Match(offset=4, mask=0xFFC0_FF00, value=_TCP << 8),
        Match(offset=52, mask=0x003F_0000, value=0x0010_0000),
    )


def sees_ipv6(matches: Sequence[Match]) -> bool:
    """Whether these matches, one of those above, are about IPv6."""
    return any(not item.offset and item.value >> 28 == _IPV6 for item in matches)
