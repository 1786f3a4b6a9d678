"""A sample of all bands as lines of a terminal. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from p3_agent.report import amount, band_name, columns, speed
from p3_agent.sample import BandSample, Sample, Sender
from p3_shaper.rates import Rate

_HEADER = ("band", "DSCP", "rate", "packets/s", "dropped", "backlog", "waiting")
_BAR = 20
_SHOWN = 3
"""Senders of a band that are named; the others are counted."""


def lines(sample: Sample, notes: Sequence[str] = ()) -> list[str]:
    """A heading, a row a band with who sends in it, and the notes."""
    return [*_heading(sample), "", *_table(sample.bands), *([""] if notes else []), *notes]


def fitted(text: Sequence[str], width: int, height: int) -> list[str]:
    """What of `text` a terminal of that size can show."""
    return [line[:width] for line in text[: max(height, 1)]]


def _heading(sample: Sample) -> Iterator[str]:
    yield f"{sample.device}: {speed(sample.rate)}{_limit(sample)}"
    if sample.state != "ok":
        yield f"state: {sample.state}"


def _limit(sample: Sample) -> str:
    if not sample.limit:
        return ""
    share = min(sample.rate / sample.limit, 1.0)
    bar = "#" * round(share * _BAR)
    return f" of {Rate(sample.limit)}  [{bar:<{_BAR}}] {share:.0%}"


def _table(bands: Sequence[BandSample]) -> Iterator[str]:
    header, *rows = columns((_HEADER, *map(_row, bands)))
    yield f"{header}  senders"
    for band, row in zip(bands, rows, strict=True):
        yield f"{row}  {_senders(band.senders)}".rstrip()


def _row(band: BandSample) -> tuple[str, ...]:
    return (
        band_name(band.band),
        "-" if band.dscp is None else str(band.dscp),
        speed(band.rate),
        f"{band.packets:.0f}",
        str(band.dropped),
        amount(band.backlog_bytes),
        str(band.backlog_packets),
    )


def _senders(senders: Sequence[Sender]) -> str:
    named = ", ".join(map(_sender, senders[:_SHOWN]))
    more = len(senders) - _SHOWN
    return f"{named}, and {more} more" if more > 0 else named


def _sender(sender: Sender) -> str:
    who = f"uid {sender.uid}" if sender.pid is None else f"{sender.command}[{sender.pid}]"
    count = f" x{sender.sockets}" if sender.sockets > 1 else ""
    return f"{who}{count} {speed(sender.rate)}"
