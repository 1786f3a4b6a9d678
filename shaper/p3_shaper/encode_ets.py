"""The options of an ets qdisc (enhanced transmission selection) to bytes and back. Pure.

Sources: linux/pkt_sched.h (TCA_ETS_*), net/sched/sch_ets.c, tc-ets(8).
"""

from __future__ import annotations

import struct

from p3_shaper.parts import EtsOptions
from p3_shaper.tcmessage import NESTED, attribute, attributes

_NBANDS, _NSTRICT, _QUANTA, _QUANTA_BAND, _PRIOMAP, _PRIOMAP_BAND = range(1, 7)
_U32 = struct.Struct("=I")


def encode_ets_options(options: EtsOptions) -> bytes:
    """What TCA_OPTIONS holds; as tc does, without what is empty."""
    data = attribute(_NBANDS, bytes([options.bands]))
    if options.strict:
        data += attribute(_NSTRICT, bytes([options.strict]))
    if options.quanta:
        quanta = (attribute(_QUANTA_BAND, _U32.pack(quantum)) for quantum in options.quanta)
        data += attribute(_QUANTA | NESTED, b"".join(quanta))
    if options.priomap:
        places = (attribute(_PRIOMAP_BAND, bytes([band])) for band in options.priomap)
        data += attribute(_PRIOMAP | NESTED, b"".join(places))
    return data


def decode_ets_options(data: bytes) -> EtsOptions | None:
    """What `encode_ets_options` was given; None for attributes that it does not know."""
    found = dict(attributes(data))
    if not {_NBANDS} <= found.keys() <= {_NBANDS, _NSTRICT, _QUANTA, _PRIOMAP}:
        return None
    return EtsOptions(
        bands=found[_NBANDS][0],
        strict=found.get(_NSTRICT, b"\0")[0],
        quanta=tuple(_U32.unpack(item)[0] for _, item in attributes(found.get(_QUANTA, b""))),
        priomap=tuple(item[0] for _, item in attributes(found.get(_PRIOMAP, b""))),
    )
