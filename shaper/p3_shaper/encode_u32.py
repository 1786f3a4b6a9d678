"""u32 filters to the kernel's bytes and back, with a redirect to another interface. Pure.

Sources: linux/pkt_cls.h, linux/tc_act/tc_mirred.h. Reading back gives None for anything that the
values cannot say in full.
"""

from __future__ import annotations

import socket
import struct

from p3_shaper.parts import Filter, Match
from p3_shaper.tcmessage import NESTED, Object, TcMessage, attribute, attributes

_U32 = struct.Struct("=I")

_U32_CLASSID, _U32_HASH, _U32_LINK, _U32_DIVISOR, _U32_SEL = 1, 2, 3, 4, 5
_U32_ACT, _U32_PCNT, _U32_FLAGS, _U32_PAD = 7, 9, 11, 12
_U32_MODELLED = {_U32_CLASSID, _U32_HASH, _U32_SEL, _U32_ACT, _U32_PCNT, _U32_FLAGS, _U32_PAD}
_SEL = struct.Struct("=BBBxHHhhI")
_KEY = struct.Struct("=4s4sii")
_TERMINAL = 1

_ACT_KIND, _ACT_OPTIONS = 1, 2
_MIRRED_PARMS = 2
_MIRRED = struct.Struct("=IIiiiiI")
_STOLEN = 4
_EGRESS_REDIRECT = 1


def filter_info(priority: int, protocol: int) -> int:
    """The field of struct tcmsg that names a filter's priority and protocol."""
    return priority << 16 | socket.htons(protocol)


def filter_key(message: TcMessage) -> tuple[int, int, int]:
    """Parent, priority and protocol of a filter."""
    return message.parent, message.info >> 16, socket.ntohs(message.info & 0xFFFF)


def encode_filter(item: Filter) -> TcMessage:
    """The message that makes `item`."""
    selector = _SEL.pack(_TERMINAL, 0, len(item.matches), 0, 0, 0, 0, 0)
    for match in item.matches:
        selector += _KEY.pack(
            match.mask.to_bytes(4, "big"), match.value.to_bytes(4, "big"), match.offset, 0
        )
    options = b""
    if item.classid:
        options += attribute(_U32_CLASSID, _U32.pack(item.classid))
    if item.redirect:
        options += attribute(_U32_ACT, _encode_redirect(item.redirect))
    options += attribute(_U32_SEL, selector)
    info = filter_info(item.priority, item.protocol)
    return TcMessage(Object.FILTER, 0, item.parent, "u32", options, info)


def decode_filter(message: TcMessage) -> Filter | None:
    """The filter that `message` tells of; None for another kind, or u32 with more than matches."""
    if message.kind != "u32" or message.options is None or message.chain:
        return None
    found = dict(attributes(message.options))
    if _U32_SEL not in found or not found.keys() <= _U32_MODELLED:
        return None
    matches = _decode_selector(found[_U32_SEL])
    redirect = _decode_redirect(found[_U32_ACT]) if _U32_ACT in found else 0
    if matches is None or redirect is None:
        return None
    classid = _U32.unpack(found[_U32_CLASSID])[0] if _U32_CLASSID in found else 0
    parent, priority, protocol = filter_key(message)
    return Filter(parent, priority, protocol, matches, classid, redirect)


def _decode_selector(data: bytes) -> tuple[Match, ...] | None:
    flags, shift, count, *rest = _SEL.unpack_from(data)
    if flags != _TERMINAL or shift or any(rest):
        return None
    matches = []
    for number in range(count):
        mask, value, offset, next_header = _KEY.unpack_from(data, _SEL.size + number * _KEY.size)
        if next_header:
            return None
        matches.append(Match(offset, int.from_bytes(mask, "big"), int.from_bytes(value, "big")))
    return tuple(matches)


def _encode_redirect(index: int) -> bytes:
    parms = _MIRRED.pack(0, 0, _STOLEN, 0, 0, _EGRESS_REDIRECT, index)
    action = attribute(_ACT_KIND, b"mirred\0")
    action += attribute(_ACT_OPTIONS | NESTED, attribute(_MIRRED_PARMS, parms))
    return attribute(1, action)


def _decode_redirect(data: bytes) -> int | None:
    actions = [dict(attributes(value)) for _, value in attributes(data)]
    if len(actions) != 1 or actions[0].get(_ACT_KIND) != b"mirred\0":
        return None
    options = dict(attributes(actions[0].get(_ACT_OPTIONS, b"")))
    if _MIRRED_PARMS not in options:
        return None
    _, _, verdict, _, _, direction, index = _MIRRED.unpack_from(options[_MIRRED_PARMS])
    return int(index) if (verdict, direction) == (_STOLEN, _EGRESS_REDIRECT) else None
