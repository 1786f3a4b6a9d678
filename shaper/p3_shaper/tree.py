"""The qdiscs, classes and filters of one interface as a value, and builders of such. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from p3_shaper import pieces
from p3_shaper.bands import BandTable
from p3_shaper.limits import MIN_QUEUE, LinkLimits, queue_bytes
from p3_shaper.parts import ETH_P_ALL, Filter, HtbClass, Match, Qdisc
from p3_shaper.pieces import FIRST_BAND, INNER, LOWEST_PRIORITY, MARKED, UNMARKED, class_id
from p3_shaper.rates import Rate
from p3_shaper.tcmessage import INGRESS_HANDLE, TC_INGRESS, TC_ROOT, TcMessage

__all__ = [
    "AGENT_MAJOR",
    "SHAPE_MAJOR",
    "Filter",
    "HtbClass",
    "LinkLimits",
    "Qdisc",
    "Tree",
    "TreeError",
    "band_guarantee",
    "ets_tree",
    "htb_prio_tree",
    "htb_tree",
    "ingress_tree",
    "link_tree",
    "prio_tree",
]

AGENT_MAJOR = 0x7033
"""Major of the agent's root qdisc: how ours is recognised."""
SHAPE_MAJOR = 0x7053
"""Major of the root qdisc of p3-shape and of a test cluster's links."""
MAJORS = 0x20
"""Each owner has this many majors: its root's, and above it those of its leaf queues."""
MAX_QUEUES = 256
"""Transmit queues that can have a tree each; their majors are below AGENT_MAJOR, MAJORS apart."""
REDIRECT_PRIORITY = SHAPE_MAJOR
"""Priority of the filter with which p3-shape redirects what comes in, how it is recognised."""

HTB_BANDS = 7
STRICT_BANDS = 16

GUARANTEE_SHARE = 0.005
MIN_GUARANTEE = Rate(500_000)
"""A starved TCP connection dies of its timeout: one packet of 64 KB a second keeps it alive."""
_MAX_QUEUE = 4 * 10**9  # bytes; bfifo's limit has 32 bits


class TreeError(ValueError):
    """A tree that cannot work; the message says which part and what to do."""


@dataclass(frozen=True, slots=True)
class Tree:
    """One hook (root or ingress) of one interface. Parts are kept sorted: equality ignores order.

    `other` holds classes and filters that are not modelled here, as the kernel's bytes.
    Equality leaves out `bands` (class ids, most urgent first), `unmarked` and `queues` (how many
    times each of those classes is there, see `copies`), which say where to read statistics and
    which a tree read from the kernel lacks; and `messages`, all that the kernel said, in an order
    in which it can be said to it again.
    """

    qdiscs: tuple[Qdisc, ...] = ()
    classes: tuple[HtbClass, ...] = ()
    filters: tuple[Filter, ...] = ()
    other: tuple[TcMessage, ...] = ()
    bands: tuple[int, ...] = field(default=(), compare=False)
    unmarked: int = field(default=0, compare=False)
    queues: int = field(default=1, compare=False)
    messages: tuple[TcMessage, ...] = field(default=(), compare=False, repr=False)

    def __post_init__(self) -> None:
        qdiscs = sorted(self.qdiscs, key=lambda item: (not _is_top(item), item.handle, item.parent))
        object.__setattr__(self, "qdiscs", tuple(qdiscs))
        classes = sorted(self.classes, key=lambda item: item.classid)
        object.__setattr__(self, "classes", tuple(classes))
        object.__setattr__(self, "filters", tuple(sorted(self.filters)))

    @property
    def root(self) -> Qdisc | None:
        """The qdisc at the hook; None where the kernel's default (handle 0) or nothing is."""
        top = next(filter(_is_top, self.qdiscs), None)
        return top if top is not None and top.handle else None

    def copies(self, classid: int) -> tuple[int, ...]:
        """The classes that do what `classid`, one of `bands` or `unmarked`, does: one a queue."""
        return tuple(classid - (MAJORS * number << 16) for number in range(self.queues))

    @property
    def owner(self) -> int:
        """AGENT_MAJOR or SHAPE_MAJOR if the root is ours, else 0."""
        root = self.root
        return root.major if root is not None and root.major in (AGENT_MAJOR, SHAPE_MAJOR) else 0

    @property
    def kinds(self) -> frozenset[str]:
        """Names of the kernel's qdiscs, classifiers and actions that the tree needs."""
        names = {qdisc.kind for qdisc in self.qdiscs}
        if self.filters:
            names.add("u32")
        if any(item.redirect for item in self.filters):
            names.add("mirred")
        return frozenset(names)


def band_guarantee(rate: Rate) -> Rate:
    """What each band is guaranteed of a link of `rate`: 0.5 %, at least 500 kbit/s."""
    return max(MIN_GUARANTEE, rate.share(GUARANTEE_SHARE))


def htb_tree(
    table: BandTable, rate: Rate, limits: LinkLimits, *, guarantee: Rate | None = None
) -> Tree:
    """Bands as htb classes of prio = band below one class of the link's `rate`.

    Every band may take the whole link and is guaranteed `guarantee` (default `band_guarantee`);
    unmarked traffic is guaranteed the table's share. Raises TreeError for more than 7 bands, or
    guarantees that add up past the rate.
    """
    if len(table) > HTB_BANDS:
        raise TreeError(
            f"{len(table)} bands: htb has 8 priorities, one of them for unmarked traffic; "
            f"choose at most {HTB_BANDS} bands, or the mode htb+prio"
        )
    link = rate.whole_bytes()
    floor = (guarantee or band_guarantee(link)).whole_bytes()
    unmarked = link.share(table.unmarked_share)
    _check_guarantees([floor] * len(table), unmarked, link)
    major = AGENT_MAJOR
    bands = tuple(class_id(major, FIRST_BAND + band.index) for band in table.bands)
    rates = [*((floor, band.index) for band in table.bands), (unmarked, LOWEST_PRIORITY)]
    leaves = [*bands, class_id(major, UNMARKED)]
    return Tree(
        qdiscs=(
            pieces.htb_root(major, UNMARKED),
            *(pieces.leaf(item, queue_bytes(link)) for item in leaves),
        ),
        classes=(
            pieces.inner_class(major, link, limits),
            *(
                pieces.leaf_class(classid, class_id(major, INNER), (share, link), priority, limits)
                for classid, (share, priority) in zip(leaves, rates, strict=True)
            ),
        ),
        filters=(*pieces.ack_filters(major, bands[0]), *pieces.dscp_filters(major, table, bands)),
        bands=bands,
        unmarked=leaves[-1],
    )


def prio_tree(table: BandTable) -> Tree:
    """Bands as those of a prio qdisc, without a rate; unmarked traffic takes one more, the last.

    Strict: nothing is guaranteed, to unmarked traffic either. Raises TreeError for 16 bands.
    """
    return _strict_tree("prio", table)


def ets_tree(table: BandTable) -> Tree:
    """The same of an ets qdisc, all of whose bands are strict; some NICs carry it out themselves.

    Raises TreeError for 16 bands.
    """
    return _strict_tree("ets", table)


def _strict_tree(kind: pieces.Strict, table: BandTable) -> Tree:
    if len(table) >= STRICT_BANDS:
        raise TreeError(
            f"{len(table)} bands: {kind} has {STRICT_BANDS}, one of them for unmarked traffic; "
            f"choose at most {STRICT_BANDS - 1} bands, or the mode htb+prio"
        )
    qdiscs, classes = pieces.strict(kind, AGENT_MAJOR, TC_ROOT, len(table) + 1, MIN_QUEUE)
    bands, unmarked = classes[:-1], classes[-1]
    return Tree(
        qdiscs=qdiscs,
        filters=(
            *pieces.ack_filters(AGENT_MAJOR, bands[0]),
            *pieces.dscp_filters(AGENT_MAJOR, table, bands),
        ),
        bands=bands,
        unmarked=unmarked,
    )


def htb_prio_tree(table: BandTable, rate: Rate, limits: LinkLimits) -> Tree:
    """Up to 16 bands of a prio qdisc, inside one htb class of a link of `rate`.

    Unmarked traffic has an htb class beside it, guaranteed the table's share; a band is guaranteed
    nothing while a higher one is busy.
    """
    link = rate.whole_bytes()
    unmarked_rate = link.share(table.unmarked_share)
    marked_rate = Rate.from_bytes_per_second(link.bytes_per_second - unmarked_rate.bytes_per_second)
    _check_guarantees([marked_rate], unmarked_rate, link)
    major = AGENT_MAJOR
    marked, unmarked, inner = (class_id(major, minor) for minor in (MARKED, UNMARKED, INNER))
    below = pieces.leaf_major(marked)
    prio, bands = pieces.strict("prio", below, marked, max(2, len(table)), queue_bytes(link))
    bands = bands[: len(table)]
    every = (marked,) * len(table)
    return Tree(
        qdiscs=(pieces.htb_root(major, UNMARKED), *prio, pieces.leaf(unmarked, queue_bytes(link))),
        classes=(
            pieces.inner_class(major, link, limits),
            pieces.leaf_class(marked, inner, (marked_rate, link), 0, limits),
            pieces.leaf_class(unmarked, inner, (unmarked_rate, link), LOWEST_PRIORITY, limits),
        ),
        filters=(
            *pieces.ack_filters(major, marked),
            *pieces.dscp_filters(major, table, every),
            *pieces.ack_filters(below, bands[0]),
            *pieces.dscp_filters(below, table, bands),
        ),
        bands=bands,
        unmarked=unmarked,
    )


def link_tree(rate: Rate, buffer_bytes: int, limits: LinkLimits) -> Tree:
    """A plain link of `rate` with a queue of `buffer_bytes` before it: p3-shape, a switch port.

    Raises TreeError if the queue cannot hold one of the interface's largest packets, or is more
    than the kernel can count.
    """
    if buffer_bytes > _MAX_QUEUE:
        raise TreeError(f"a buffer of {buffer_bytes} bytes is too large: choose at most 4GB")
    if buffer_bytes < limits.packet:
        raise TreeError(
            f"a buffer of {buffer_bytes} bytes holds no packet of {limits.packet} bytes, the "
            f"interface's largest; choose at least {limits.packet}B"
        )
    link = rate.whole_bytes()
    only = class_id(SHAPE_MAJOR, FIRST_BAND)
    return Tree(
        qdiscs=(pieces.htb_root(SHAPE_MAJOR, FIRST_BAND), pieces.leaf(only, buffer_bytes)),
        classes=(pieces.leaf_class(only, SHAPE_MAJOR << 16, (link, link), 0, limits),),
        unmarked=only,
    )


def ingress_tree(index: int) -> Tree:
    """Everything that comes in goes to interface `index` first (an ifb, where a tree shapes it)."""
    everything = (Match(offset=0, mask=0, value=0),)
    redirect = Filter(INGRESS_HANDLE, REDIRECT_PRIORITY, ETH_P_ALL, everything, redirect=index)
    return Tree(
        qdiscs=(Qdisc("ingress", INGRESS_HANDLE, TC_INGRESS),),
        filters=(redirect,),
    )


def _is_top(qdisc: Qdisc) -> bool:
    return qdisc.parent in (TC_ROOT, TC_INGRESS)


def _check_guarantees(bands: list[Rate], unmarked: Rate, link: Rate) -> None:
    total = sum(band.bits_per_second for band in bands) + unmarked.bits_per_second
    if total > link.bits_per_second:
        raise TreeError(
            f"the guarantees add up to {Rate(total)} ({len(bands)} bands of {bands[0]} and "
            f"{unmarked} for unmarked traffic), past the link's {link}: raise the rate, or "
            "choose fewer bands or a smaller guarantee"
        )
