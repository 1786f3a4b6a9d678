"""What is sent on a path and what comes back. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, TypeAlias

Version: TypeAlias = Literal[4, 6]

UNMARKED = 0
"""The DSCP of the probes that show how the path treats what has no mark."""
END_TO_END = 64
"""Hops that a probe for the far end may take."""


@dataclass(frozen=True, slots=True, order=True)
class Probe:
    """A datagram with a TTL or hop limit of `hops`, and `dscp`."""

    hops: int
    dscp: int


class Kind(StrEnum):
    """Who answers, and why."""

    PASSED = "time exceeded"
    CLOSED = "closed port"
    ECHOED = "listener"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back: `tos` is the byte that `by` saw; `reason` is why it refused."""

    probe: Probe
    kind: Kind
    by: str
    tos: int
    reason: str = ""

    @property
    def dscp(self) -> int:
        """The DSCP that arrived there."""
        return self.tos >> 2

    @property
    def ecn(self) -> int:
        """The ECN bits that arrived there (RFC 3168); probes are sent with none set."""
        return self.tos & 3

    @property
    def arrived(self) -> bool:
        """Whether the far end gave it."""
        return self.kind in (Kind.CLOSED, Kind.ECHOED)


@dataclass(frozen=True, slots=True)
class Hop:
    """What one hop answered, by the DSCP that was sent; the far end's number may be None."""

    number: int | None
    answers: Mapping[int, Answer]

    @property
    def addresses(self) -> tuple[str, ...]:
        """Who answered: several where the path is not one."""
        return tuple(dict.fromkeys(answer.by for answer in self.answers.values()))


@dataclass(frozen=True, slots=True)
class Findings:
    """All answers on the way to `target`; `hops` are the routers, in order, silent ones too."""

    target: str
    dscps: tuple[int, ...]
    hops: tuple[Hop, ...]
    far: Hop
