"""What a check finds: how bad, what was seen, and what mends it. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator

import msgspec


class Level(enum.Enum):
    """How bad. ERROR: bands have no or little effect. WARNING: less than they could. NOTE: know."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


_ORDER = tuple(Level)


class Finding(msgspec.Struct, frozen=True):
    """`check` names what was looked at. `mend` is a command, or what to do where none exists."""

    check: str
    level: Level
    seen: str
    mend: str


def by_weight(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The worst first; otherwise in the order they were found."""
    return tuple(sorted(findings, key=lambda item: _ORDER.index(item.level)))


def is_ill(findings: Iterable[Finding]) -> bool:
    """Whether any is more than a note."""
    return any(item.level is not Level.NOTE for item in findings)


def lines(findings: Iterable[Finding]) -> Iterator[str]:
    """Two lines each: what was seen, and what mends it."""
    for item in findings:
        yield f"{item.level.value}: {item.check}: {item.seen}"
        yield f"    {item.mend}"
