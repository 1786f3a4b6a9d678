"""A status for people and for programs. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from p3_agent.messages import ClassStatus, Status

_HEADER = ("band", "DSCP", "class", "guaranteed", "sent", "packets", "drops", "backlog", "waiting")


def as_json(status: Status) -> str:
    """One JSON object, the control socket's reply without its tag; rates in bits a second."""
    fields = msgspec.structs.asdict(status)
    return msgspec.json.format(msgspec.json.encode(fields), indent=2).decode()


def as_text(status: Status) -> str:
    """The interface, a table with a row a class, the tree, and what was repaired."""
    return "\n".join(_lines(status))


def _lines(status: Status) -> Iterator[str]:
    rate = "" if status.rate is None else f" at {bits(status.rate)}"
    yield f"{status.device}: {status.mode}{rate} ({status.reason}), agent pid {status.pid}"
    yield f"state: {status.state}"
    yield ""
    yield from _columns((_HEADER, *map(_row, status.classes)))
    yield ""
    yield from status.tree
    drift = status.drift
    yield ""
    yield f"checks: {status.reconciliations}, repairs: {drift.repairs}"
    if drift.last:
        yield f"last repair: {'; '.join(drift.last)}"


def _row(entry: ClassStatus) -> tuple[str, ...]:
    return (
        "other" if entry.band is None else str(entry.band),
        "-" if entry.dscp is None else str(entry.dscp),
        entry.classid,
        "-" if entry.guarantee is None else bits(entry.guarantee),
        amount(entry.bytes),
        str(entry.packets),
        str(entry.drops),
        amount(entry.backlog_bytes),
        str(entry.backlog_packets),
    )


def _columns(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))


def bits(rate: int) -> str:
    """A rate in the largest unit that leaves it whole: 1500000 is "1500kbit"."""
    for unit, factor in (("gbit", 10**9), ("mbit", 10**6), ("kbit", 10**3)):
        if rate >= factor and rate % factor == 0:
            return f"{rate // factor}{unit}"
    return f"{rate}bit"


def amount(count: int) -> str:
    """Bytes in decimal units, three digits: 1234567 is "1.23 MB"."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{count} B" if unit == "B" else f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.4g} TB"
