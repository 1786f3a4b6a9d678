"""The parts of a tree: qdiscs, htb classes, u32 filters, as immutable values. Pure.

They hold the kernel's own units (bytes a second, ticks of 64 ns) and leave out what the kernel
adds of itself (filter handles, counters), so that what is read back equals what was applied.
"""

from __future__ import annotations

from dataclasses import dataclass

from p3_shaper.rates import Rate

ETH_P_ALL = 0x0003
ETH_P_IP = 0x0800
ETH_P_IPV6 = 0x86DD


@dataclass(frozen=True, slots=True)
class HtbOptions:
    """An htb qdisc: `default` is the minor of the class for what no filter takes."""

    default: int
    rate_to_quantum: int = 10


@dataclass(frozen=True, slots=True)
class FifoOptions:
    """A pfifo (limit in packets) or bfifo (limit in bytes)."""

    limit: int


@dataclass(frozen=True, slots=True)
class PrioOptions:
    """A prio qdisc: `bands` classes, and for each of the 16 skb priorities the band it takes."""

    bands: int
    priomap: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EtsOptions:
    """An ets qdisc: of `bands` classes the first `strict` go in order, the rest share by `quanta`.

    `quanta` are bytes a round; `priomap` is the band that each of the 16 skb priorities takes.
    """

    bands: int
    strict: int
    quanta: tuple[int, ...]
    priomap: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OtherOptions:
    """Options of a kind that is not modelled here, as the kernel's bytes."""

    data: bytes


Options = HtbOptions | FifoOptions | PrioOptions | EtsOptions | OtherOptions


@dataclass(frozen=True, slots=True)
class Qdisc:
    """A qdisc of any kind. `parent` is TC_ROOT, TC_INGRESS or a class id; handle 0 is a default."""

    kind: str
    handle: int
    parent: int
    options: Options | None = None

    @property
    def major(self) -> int:
        """The upper 16 bits of the handle, which the qdisc's classes share."""
        return self.handle >> 16


@dataclass(frozen=True, slots=True)
class HtbClass:
    """An htb class. An inner one (with classes below it) has priority and quantum 0.

    `burst` and `ceil_burst` are in the kernel's ticks of 64 ns, at `rate` and at `ceil`.
    """

    classid: int
    parent: int
    rate: Rate
    ceil: Rate
    burst: int
    ceil_burst: int
    priority: int = 0
    quantum: int = 0


@dataclass(frozen=True, slots=True, order=True)
class Match:
    """32 bits of the packet, `offset` bytes into its network header: `word & mask == value`."""

    offset: int
    mask: int
    value: int


@dataclass(frozen=True, slots=True, order=True)
class Filter:
    """A u32 filter: a packet of `protocol` (an EtherType) that fits every match goes to `classid`.

    `redirect` is the index of the interface that gets it instead (mirred), at an ingress hook.
    """

    parent: int
    priority: int
    protocol: int
    matches: tuple[Match, ...]
    classid: int = 0
    redirect: int = 0
