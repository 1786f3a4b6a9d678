"""What the kernel can be told again from what it tells, by kind; all else is refused. Pure.

A kind is known once a test has put it back byte for byte (tests/shaper/test_replay.py). Most of the
others lose something: a table, a distribution, a program.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from p3_shaper.tcmessage import Object, TcMessage, attributes

_QDISCS = frozenset(
    {"bfifo", "cake", "clsact", "codel", "drr", "fq", "fq_codel", "hfsc", "htb", "ingress", "mq"}
    | {"netem", "pfifo", "pfifo_fast", "prio", "qfq", "sfq", "tbf"}
)
_ACTIONS = frozenset({"gact", "mirred", "skbedit", "vlan"})
_BPF = "a bpf program cannot be loaded again from what the kernel tells of it"
_DISTRIBUTION = "the kernel does not give back the distribution of its jitter"
_TABLE = "the kernel does not give back the rate table of its police action"
_ACTION_KIND = 1
_NETEM_OPTIONS = struct.Struct("=20xI")  # struct tc_netem_qopt: the last field is the jitter
_NETEM_JITTER64, _NETEM_SLOT = 11, 12


@dataclass(frozen=True, slots=True)
class Classifier:
    """Where among a classifier's options what is (linux/pkt_cls.h); 0 for what it has not."""

    actions: int
    police: int = 0
    flags: int = 0
    counters: int = 0


CLASSIFIERS = {
    "basic": Classifier(actions=3, police=4, counters=5),
    "cgroup": Classifier(actions=1, police=2),
    "flower": Classifier(actions=3, flags=22),
    "fw": Classifier(actions=4, police=2),
    "matchall": Classifier(actions=2, flags=3, counters=4),
    "u32": Classifier(actions=7, police=6, flags=11, counters=9),
}


def obstacle(message: TcMessage) -> str:
    """Why the kernel cannot be told `message` again, "" if it can."""
    if message.unsayable:
        return message.unsayable
    match message.object:
        case Object.QDISC:
            return _qdisc_obstacle(message)
        case Object.FILTER:
            return _filter_obstacle(message)
    return ""  # a class is of its qdisc's kind


def _qdisc_obstacle(message: TcMessage) -> str:
    if message.kind not in _QDISCS:
        return _unknown(message.kind)
    if message.kind == "netem" and message.options is not None:
        jitter = _NETEM_OPTIONS.unpack_from(message.options)[0]
        found = dict(attributes(message.options[_NETEM_OPTIONS.size :]))
        if jitter or any(found.get(_NETEM_JITTER64, b"")) or _NETEM_SLOT in found:
            return _DISTRIBUTION
    return ""


def _filter_obstacle(message: TcMessage) -> str:
    if message.kind == "bpf":
        return _BPF
    classifier = CLASSIFIERS.get(message.kind)
    if classifier is None:
        return _unknown(message.kind)
    found = dict(attributes(message.options or b""))
    if classifier.police in found:
        return _TABLE
    kinds = _action_kinds(found.get(classifier.actions, b""))
    return next((_action_obstacle(kind) for kind in sorted(kinds - _ACTIONS)), "")


def _action_kinds(data: bytes) -> set[str]:
    names = [dict(attributes(action)).get(_ACTION_KIND, b"") for _, action in attributes(data)]
    return {name.rstrip(b"\0").decode("ascii", "replace") for name in names}


def _action_obstacle(kind: str) -> str:
    return {"bpf": _BPF, "police": _TABLE}.get(kind, _unknown(f"action {kind}"))


def _unknown(kind: str) -> str:
    return f"it is not known whether the kernel gives back all of {kind}"
