"""What happened on an interface between two readings: each band's rates, and who sends. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from p3_agent.messages import ClassStatus, Status
from p3_agent.processes import Process
from p3_shaper.sockdiag import Socket


@dataclass(frozen=True, slots=True)
class Reading:
    """One look: the agent's answer, the sockets and their holders, and when (monotonic seconds).

    `holders` is by inode; a socket without an entry is one whose process could not be seen.
    """

    at: float
    status: Status
    sockets: Sequence[Socket] = ()
    holders: Mapping[int, Process] = field(default_factory=dict)


class Sender(msgspec.Struct, frozen=True):
    """One process's sockets of one band: payload bits a second, and bytes that wait in them.

    `pid` and `command` are None where only root could tell; then it is all of user `uid`'s.
    """

    pid: int | None
    command: str | None
    uid: int
    sockets: int
    rate: float
    queued_bytes: int


class BandSample(msgspec.Struct, frozen=True):
    """One class: `band` is None for unmarked traffic. Rates are bits a second, headers included.

    `dropped` counts packets since the last sample, `drops` since the class was made.
    """

    band: int | None
    dscp: int | None
    classid: str
    rate: float
    packets: float
    dropped: int
    drops: int
    backlog_bytes: int
    backlog_packets: int
    senders: tuple[Sender, ...]


class Sample(msgspec.Struct, frozen=True):
    """All bands over `interval` seconds. `limit` is the tree's rate, None where it holds none."""

    device: str
    state: str
    interval: float
    limit: int | None
    rate: float
    bands: tuple[BandSample, ...]


def sample(before: Reading, after: Reading) -> Sample:
    """What happened from `before` to `after`. Counters that went back began again at zero."""
    seconds = max(after.at - before.at, 1e-9)
    earlier = {entry.classid: entry for entry in before.status.classes}
    senders = _senders(before, after, seconds)
    bands = tuple(
        _band(earlier.get(entry.classid), entry, seconds, senders) for entry in after.status.classes
    )
    status = after.status
    total = sum(band.rate for band in bands)
    return Sample(status.device, status.state, seconds, status.rate, total, bands)


def _band(
    earlier: ClassStatus | None,
    entry: ClassStatus,
    seconds: float,
    senders: Mapping[int | None, tuple[Sender, ...]],
) -> BandSample:
    started = earlier is None or earlier.bytes > entry.bytes or earlier.drops > entry.drops
    base = None if started else earlier
    return BandSample(
        band=entry.band,
        dscp=entry.dscp,
        classid=entry.classid,
        rate=8 * (entry.bytes - (base.bytes if base else 0)) / seconds,
        packets=(entry.packets - (base.packets if base else 0)) / seconds,
        dropped=entry.drops - (base.drops if base else 0),
        drops=entry.drops,
        backlog_bytes=entry.backlog_bytes,
        backlog_packets=entry.backlog_packets,
        senders=senders.get(entry.dscp, ()),
    )


def _senders(
    before: Reading, after: Reading, seconds: float
) -> dict[int | None, tuple[Sender, ...]]:
    """By DSCP (None: no band's), the fastest first."""
    dscps = {entry.dscp for entry in after.status.classes}
    earlier = {(item.inode, item.port): item.sent for item in before.sockets}
    groups: dict[tuple[int | None, Process | int], list[Socket]] = {}
    for item in leaving(after.sockets):
        who = after.holders.get(item.inode, item.uid)
        groups.setdefault((item.dscp if item.dscp in dscps else None, who), []).append(item)
    found: dict[int | None, list[Sender]] = {}
    for (dscp, who), items in groups.items():
        sent = sum(item.sent - earlier.get((item.inode, item.port), 0) for item in items)
        process = who if isinstance(who, Process) else None
        sender = Sender(
            pid=process.pid if process else None,
            command=process.command if process else None,
            uid=items[0].uid,
            sockets=len(items),
            rate=8 * max(sent, 0) / seconds,
            queued_bytes=sum(item.queued for item in items),
        )
        found.setdefault(dscp, []).append(sender)
    return {dscp: tuple(sorted(items, key=_eagerness)) for dscp, items in found.items()}


def _eagerness(sender: Sender) -> tuple[float, int, int]:
    return (-sender.rate, -sender.queued_bytes, sender.pid or 0)


def leaving(sockets: Iterable[Socket]) -> list[Socket]:
    """Those that a process holds and whose bytes leave the machine.

    UDP sockets without a peer count if they are marked: whether they send, nobody knows.
    """
    return [
        item for item in sockets if item.inode and (item.peer or item.dscp) and not item.is_local
    ]
