"""Qdiscs and htb classes to the kernel's bytes and back. Pure.

Source: linux/pkt_sched.h. Reading back gives None for
anything that the values cannot say in full, so that nothing is lost by reading and saying again.
"""

from __future__ import annotations

import struct

from p3_shaper.encode_ets import decode_ets_options, encode_ets_options
from p3_shaper.parts import (
    EtsOptions,
    FifoOptions,
    HtbClass,
    HtbOptions,
    Options,
    OtherOptions,
    PrioOptions,
    Qdisc,
)
from p3_shaper.rates import Rate
from p3_shaper.tcmessage import Object, TcMessage, attribute, attributes

_U32 = struct.Struct("=I")
_U64 = struct.Struct("=Q")


def encode_qdisc(qdisc: Qdisc) -> TcMessage:
    """The message that makes `qdisc`."""
    return TcMessage(
        Object.QDISC, qdisc.handle, qdisc.parent, qdisc.kind, _encode_options(qdisc.options)
    )


def decode_qdisc(message: TcMessage) -> Qdisc:
    """The qdisc that `message` tells of; options that are not modelled stay bytes."""
    options = _decode_options(message.kind, message.options)
    return Qdisc(message.kind, message.handle, message.parent, options)


def _encode_options(options: Options | None) -> bytes | None:
    match options:
        case None:
            return None
        case HtbOptions(default, rate_to_quantum):
            return attribute(
                _HTB_INIT, _HTB_GLOB.pack(_HTB_VERSION, rate_to_quantum, default, 0, 0)
            )
        case FifoOptions(limit):
            return _U32.pack(limit)
        case PrioOptions(bands, priomap):
            return _PRIO.pack(bands, bytes(priomap))
        case EtsOptions():
            return encode_ets_options(options)
        case OtherOptions(data):
            return data


def _decode_options(kind: str, data: bytes | None) -> Options | None:
    if not data:
        return None
    if kind in ("pfifo", "bfifo") and len(data) == _U32.size:
        return FifoOptions(_U32.unpack(data)[0])
    if kind == "prio" and len(data) >= _PRIO.size:
        bands, priomap = _PRIO.unpack_from(data)
        return PrioOptions(bands, tuple(priomap))
    if kind == "ets":
        return decode_ets_options(data) or OtherOptions(data)
    if kind == "htb":
        return _decode_htb_options(data)
    return OtherOptions(data)


_PRIO = struct.Struct("=i16s")

_HTB_PARMS, _HTB_INIT, _HTB_DIRECT_QLEN, _HTB_RATE64, _HTB_CEIL64, _HTB_PAD = 1, 2, 5, 6, 7, 8
_HTB_GLOB = struct.Struct("=IIIII")
_HTB_VERSION = 3
_RATESPEC = struct.Struct("=BBHhHI")
_HTB_OPT = struct.Struct("=IIIII")
_ETHERNET = 1
_RATE_MAX = 2**32 - 1
"""Bytes a second that fit the old field: 34 Gbit/s. Above it the 64-bit attributes count."""
_INNER_QUANTUM = 60_000
"""An inner class has no use for a quantum; without one the kernel logs a warning."""


def _decode_htb_options(data: bytes) -> Options:
    found = dict(attributes(data))
    if _HTB_INIT not in found or not found.keys() <= {_HTB_INIT, _HTB_DIRECT_QLEN}:
        return OtherOptions(data)
    _, rate_to_quantum, default, _, _ = _HTB_GLOB.unpack_from(found[_HTB_INIT])
    return HtbOptions(default, rate_to_quantum)


def encode_class(item: HtbClass) -> TcMessage:
    """The message that makes `item`. The kernel reports an inner class's level, and reads none."""
    rate, ceil = item.rate.bytes_per_second, item.ceil.bytes_per_second
    level = 0 if item.quantum else 1
    parms = (
        _RATESPEC.pack(0, _ETHERNET, 0, 0, 0, min(rate, _RATE_MAX))
        + _RATESPEC.pack(0, _ETHERNET, 0, 0, 0, min(ceil, _RATE_MAX))
        + _HTB_OPT.pack(
            item.burst, item.ceil_burst, item.quantum or _INNER_QUANTUM, level, item.priority
        )
    )
    options = attribute(_HTB_PARMS, parms)
    for number, value in ((_HTB_RATE64, rate), (_HTB_CEIL64, ceil)):
        if value > _RATE_MAX:
            options += attribute(number, _U64.pack(value))
    return TcMessage(Object.CLASS, item.classid, item.parent, "htb", options)


def decode_class(message: TcMessage) -> HtbClass | None:
    """The htb class that `message` tells of; None for another kind, overhead or offload."""
    if message.kind != "htb" or message.options is None:
        return None
    found = dict(attributes(message.options))
    known = {_HTB_PARMS, _HTB_RATE64, _HTB_CEIL64, _HTB_PAD}
    if _HTB_PARMS not in found or not found.keys() <= known:
        return None
    parms = found[_HTB_PARMS]
    rate = _decode_rate(parms, 0, found.get(_HTB_RATE64))
    ceil = _decode_rate(parms, _RATESPEC.size, found.get(_HTB_CEIL64))
    burst, ceil_burst, quantum, level, priority = _HTB_OPT.unpack_from(parms, 2 * _RATESPEC.size)
    if rate is None or ceil is None:
        return None
    inner = level > 0
    return HtbClass(
        classid=message.handle,
        parent=message.parent,
        rate=rate,
        ceil=ceil,
        burst=burst,
        ceil_burst=ceil_burst,
        priority=0 if inner else priority,
        quantum=0 if inner else quantum,
    )


def _decode_rate(parms: bytes, offset: int, wide: bytes | None) -> Rate | None:
    _, layer, overhead, _, mpu, rate = _RATESPEC.unpack_from(parms, offset)
    if layer not in (0, _ETHERNET) or overhead or mpu:
        return None
    return Rate.from_bytes_per_second(_U64.unpack(wide)[0] if wide else rate)
