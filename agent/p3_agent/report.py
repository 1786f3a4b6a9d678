"""What a running agent tells, for people and for programs. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from p3_agent.messages import ClassStatus, Status
from p3_shaper.rates import Rate

_HEADER = ("band", "DSCP", "class", "guaranteed", "sent", "packets", "drops", "backlog", "waiting")


def as_json(status: Status) -> str:
    """One JSON object, the control socket's reply without its tag; rates in bits a second."""
    return object_text(msgspec.structs.asdict(status))


def object_text(fields: object) -> str:
    """A JSON object for people to read too: indented."""
    return msgspec.json.format(msgspec.json.encode(fields), indent=2).decode()


def line_text(fields: object) -> str:
    """A JSON object on one line, where more may follow."""
    return msgspec.json.encode(fields).decode()


def as_text(status: Status) -> str:
    """The interface, a table with a row a class, the tree, and what was repaired."""
    return "\n".join(_lines(status))


def _lines(status: Status) -> Iterator[str]:
    rate = "" if status.rate is None else f" at {Rate(status.rate)}"
    yield f"{status.device}: {status.mode}{rate} ({status.reason}), agent pid {status.pid}"
    yield f"state: {status.state}"
    if status.unconfirmed_s is not None:
        yield f"goes back in {status.unconfirmed_s:.0f} s unless `p3-agent confirm` is run"
    yield ""
    yield from columns((_HEADER, *map(_row, status.classes)))
    yield ""
    yield from status.tree
    drift = status.drift
    yield ""
    yield f"checks: {status.reconciliations}, repairs: {drift.repairs}"
    if drift.last:
        yield f"last repair: {'; '.join(drift.last)}"


def _row(entry: ClassStatus) -> tuple[str, ...]:
    return (
        band_name(entry.band),
        "-" if entry.dscp is None else str(entry.dscp),
        entry.classid,
        "-" if entry.guarantee is None else str(Rate(entry.guarantee)),
        amount(entry.bytes),
        str(entry.packets),
        str(entry.drops),
        amount(entry.backlog_bytes),
        str(entry.backlog_packets),
    )


def band_name(band: int | None) -> str:
    """What a row of a table calls a band; unmarked traffic's is "other"."""
    return "other" if band is None else str(band)


def columns(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """A line a row, every column aligned right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))


def amount(count: int) -> str:
    """Bytes in decimal units: 1234567 is "1.2 MB"."""
    return _scaled(count, ("B", "kB", "MB", "GB", "TB"))


def speed(bits_per_second: float) -> str:
    """A measured rate, rounded: 123456789 is "123.5 Mbit/s"."""
    units = ("bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s")
    return _scaled(round(bits_per_second), units)


def _scaled(count: int, units: Sequence[str]) -> str:
    first, *larger = units
    if count < 1000:
        return f"{count} {first}"
    size = count / 1000
    for unit in larger[:-1]:
        if size < 1000:
            return f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} {larger[-1]}"
