"""Bursts, quanta and queue limits of HTB, computed from rate, GSO size and MTU. Pure.

The numbers are measured: a burst under about two GSO packets or 150 microseconds loses rate at
5 Gbit/s and above, one of a megabyte lets 9 to 18 % of the link leak to a lower band.
"""

from __future__ import annotations

from dataclasses import dataclass

from p3_shaper.rates import Rate

NANOSECONDS_PER_TICK = 64
"""The kernel's unit for burst, a shift by 6 bits (PSCHED_SHIFT) since Linux 2.6.31."""

BURST_MICROSECONDS = 150
MAX_BURST = 512 << 10
MIN_QUEUE = 4 << 20
"""64 KB dropped packets and cost a quarter of the rate; TCP small queues keep real ones short."""
QUEUE_MILLISECONDS = 20
MAX_QUEUE = 32 << 20
LINK_MILLISECONDS = 50
MIN_LINK_QUEUE = 256 << 10
_MAX_TICKS = 2**32 - 1


@dataclass(frozen=True, slots=True)
class LinkLimits:
    """What an interface hands to a qdisc at once: GSO packets of `gso_max_size` bytes, MTU."""

    gso_max_size: int = 65_536
    mtu: int = 1_500

    @property
    def packet(self) -> int:
        """Bytes of the largest packet that a qdisc of this interface sees."""
        return max(self.gso_max_size, self.mtu)


def burst_bytes(rate: Rate, limits: LinkLimits) -> int:
    """Bytes that may leave at once: two of the largest packets or 150 µs, at most 512 KiB.

    A packet above 256 KiB still passes: HTB lets the tokens of a class go negative.
    """
    in_time = rate.bytes_per_second * BURST_MICROSECONDS // 1_000_000
    return min(MAX_BURST, max(2 * limits.packet, in_time))


def burst_ticks(rate: Rate, size: int) -> int:
    """The time that `size` bytes take at `rate`, in the kernel's ticks, rounded up."""
    ticks = -(-size * 1_000_000_000 // (rate.bytes_per_second * NANOSECONDS_PER_TICK))
    return min(ticks, _MAX_TICKS)


def ticks_bytes(rate: Rate, ticks: int) -> int:
    """The bytes that pass at `rate` in `ticks`: what `tc` shows as burst."""
    return rate.bytes_per_second * ticks * NANOSECONDS_PER_TICK // 1_000_000_000


def quantum_bytes(limits: LinkLimits) -> int:
    """Bytes a class sends before its turn ends among classes of one prio: one largest packet."""
    return limits.packet


def queue_bytes(rate: Rate) -> int:
    """Limit of a leaf queue at `rate`: 20 ms of it, within 4 MiB and 32 MiB."""
    in_time = rate.bytes_per_second * QUEUE_MILLISECONDS // 1000
    return min(MAX_QUEUE, max(MIN_QUEUE, in_time))


def link_queue_bytes(rate: Rate) -> int:
    """Limit of a plain link's queue at `rate`: 50 ms of it, within 256 KiB and 32 MiB."""
    in_time = rate.bytes_per_second * LINK_MILLISECONDS // 1000
    return min(MAX_QUEUE, max(MIN_LINK_QUEUE, in_time))
