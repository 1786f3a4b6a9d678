"""The band table: which DSCP and which kernel class each band has. Pure; imports nothing of ours.

Agent and training side share this one definition, so that a mark and the class that matches it
cannot drift apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# Low three bits 1 or 7: Linux maps these to the neutral sk_priority 0, so that a host without an
# agent treats all bands alike. Descending dscp >> 3 keeps the order on switches that look at
# the class-selector bits alone.
DEFAULT_DSCPS = (41, 39, 23, 17, 15, 9, 7)

MAX_BANDS = 16
UNMARKED_SHARE = 0.10
"""Part of the link that traffic without a band's mark is guaranteed."""

_RISKY = {
    3: "lossless RDMA queue in SONiC's common map",
    4: "lossless RDMA queue in SONiC's common map",
    33: "used by HCCL",
    46: "EF, voice",
    **dict.fromkeys(range(24, 32), "queue 3, often with priority flow control"),
    **dict.fromkeys(range(48, 64), "network control"),
}


class BandError(ValueError):
    """A band table that cannot work; the message says which entry and what to use instead."""


@dataclass(frozen=True, slots=True)
class Band:
    """One kernel class: `index` 0 is the most urgent; `dscp` is the 6-bit code point (RFC 2474)."""

    index: int
    dscp: int

    @property
    def tos(self) -> int:
        """The value for IP_TOS and IPV6_TCLASS: DSCP in the upper six bits, ECN bits clear."""
        return self.dscp << 2


@dataclass(frozen=True, slots=True)
class BandTable:
    """Bands in order of urgency, and the share of the link that unmarked traffic is guaranteed.

    Raises BandError for fewer than 1 or more than 16 bands, a DSCP out of range or used twice,
    DSCP 0 (that is unmarked traffic), or a risky DSCP unless `force`.
    """

    dscps: tuple[int, ...] = DEFAULT_DSCPS
    unmarked_share: float = UNMARKED_SHARE
    force: bool = False

    def __post_init__(self) -> None:
        if not 1 <= len(self.dscps) <= MAX_BANDS:
            raise BandError(f"{len(self.dscps)} bands: choose 1 to {MAX_BANDS}")
        if not 0 < self.unmarked_share < 1:
            raise BandError(f"unmarked share {self.unmarked_share}: choose a part of 1, like 0.1")
        for index, dscp in enumerate(self.dscps):
            self._check(index, dscp)

    def _check(self, index: int, dscp: int) -> None:
        if not 1 <= dscp <= 63:
            raise BandError(f"band {index}: DSCP {dscp} is not in 1..63 (0 is unmarked traffic)")
        if dscp in self.dscps[:index]:
            raise BandError(f"band {index}: DSCP {dscp} is already band {self.dscps.index(dscp)}'s")
        if dscp in _RISKY and not self.force:
            raise BandError(
                f"band {index}: DSCP {dscp} is risky ({_RISKY[dscp]}); choose another or force it"
            )

    @property
    def bands(self) -> tuple[Band, ...]:
        """Every band, most urgent first."""
        return tuple(Band(index, dscp) for index, dscp in enumerate(self.dscps))

    def __len__(self) -> int:
        return len(self.dscps)


def default_table(bands: int = len(DEFAULT_DSCPS)) -> BandTable:
    """The first `bands` bands of the default table; BandError if it has not that many."""
    return table_of(DEFAULT_DSCPS, bands)


def table_of(dscps: Sequence[int], bands: int) -> BandTable:
    """A table of the `bands` most urgent entries of `dscps`; BandError if there are too few."""
    if not 1 <= bands <= len(dscps):
        raise BandError(f"{bands} bands: there are DSCPs for 1 to {len(dscps)}; name more DSCPs")
    return BandTable(dscps=tuple(dscps[:bands]))
