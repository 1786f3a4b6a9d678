"""What the actions of a filter do to a packet, as far as it matters to a scheduler. Pure.

Sources: linux/pkt_cls.h, linux/tc_act/tc_mirred.h.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from p3_shaper.tcmessage import TcMessage, attributes

EGRESS_PARENT = 0xFFFF_FFF3
"""Parent of the filters that see a packet before an interface's root qdisc (clsact, egress)."""

_ACTION_LISTS = {"u32": 7, "bpf": 1, "matchall": 2, "flower": 3, "basic": 3, "fw": 4}
_ACT_KIND, _ACT_OPTIONS = 1, 2
_MIRRED_PARMS = 2
_MIRRED = struct.Struct("=20xiI")
_EGRESS_REDIRECT = 1


@dataclass(frozen=True, slots=True)
class Action:
    """One action: its kind ("mirred", "pedit", …), and the index of the interface it sends to."""

    kind: str
    redirect: int = 0


def actions_of(filter_: TcMessage) -> tuple[Action, ...]:
    """The actions of a filter, in order; none for a kind that is not known here."""
    number = _ACTION_LISTS.get(filter_.kind)
    found = dict(attributes(filter_.options or b""))
    if number is None or number not in found:
        return ()
    return tuple(_action(value) for _, value in attributes(found[number]))


def _action(data: bytes) -> Action:
    found = dict(attributes(data))
    kind = found.get(_ACT_KIND, b"").rstrip(b"\0").decode("ascii", "replace")
    parms = dict(attributes(found.get(_ACT_OPTIONS, b""))).get(_MIRRED_PARMS, b"")
    if kind != "mirred" or len(parms) < _MIRRED.size:
        return Action(kind)
    direction, index = _MIRRED.unpack_from(parms)
    return Action(kind, index if direction == _EGRESS_REDIRECT else 0)
