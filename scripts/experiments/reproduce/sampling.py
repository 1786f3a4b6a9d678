"""A link's counters while something is measured, and what they say of it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise

from experiments.reproduce.paper import IDLE_BELOW
from experiments.reproduce.points import GIGABIT, Use
from p3_shaper.bands import default_table
from p3_shaper.cluster import Node
from p3_shaper.netlink import open_netlink
from p3_shaper.rates import Rate
from p3_shaper.tree import htb_tree

KEPT_S = 3.0
"""Seconds of which bins are kept, for pictures."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Bytes that have left by `time` (perf_counter's seconds): the most of any counter, and by
    class of the agents' tree."""

    time: float
    total: int
    classes: tuple[int, ...]


@dataclass(slots=True)
class Series:
    """Samples, in order of time."""

    period_s: float
    samples: list[Sample] = field(default_factory=list)

    def use(self, rate: Rate, stretch: float, begin: float, end: float) -> Use:
        """What left from `begin` to `end`; `stretch` makes the paper's bits of the emulated."""
        inside = [sample for sample in self.samples if begin <= sample.time <= end]
        if len(inside) < 2:
            return Use(0.0, 1.0, [], self.period_s, [])
        bins = [
            (8 * (after.total - before.total) / (after.time - before.time), after.time)
            for before, after in pairwise(inside)
        ]
        span = inside[-1].time - inside[0].time
        idle = sum(
            after.time - before.time
            for (bits, _), (before, after) in zip(bins, pairwise(inside), strict=True)
            if bits < IDLE_BELOW * rate.bits_per_second
        )
        unit = stretch / GIGABIT
        by_class = zip(inside[0].classes, inside[-1].classes, strict=False)
        return Use(
            mean_gbit=8 * (inside[-1].total - inside[0].total) / span * unit,
            idle=idle / span,
            bands=[8 * (last - first) / span * unit for first, last in by_class],
            bin_s=self.period_s,
            bins=[round(bits * unit, 4) for bits, at in bins if at > inside[-1].time - KEPT_S],
        )


@contextmanager
def sampled(node: Node, rate: Rate, period_s: float, *, agents: bool) -> Iterator[Series]:
    """Counters of the node's device inside the block. Whatever ends sampling early is raised."""
    series, stop = Series(period_s), threading.Event()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            asyncio.run(_sample(node, rate, series, stop, agents))
        except BaseException as error:  # noqa: BLE001 - raised below, in the thread that cares
            failures.append(error)

    thread = threading.Thread(target=work, name="p3-sampling")
    thread.start()
    try:
        yield series
    finally:
        stop.set()
        thread.join()
    if failures:
        raise failures[0]


async def _sample(
    node: Node, rate: Rate, series: Series, stop: threading.Event, agents: bool
) -> None:
    async with open_netlink(node.name) as netlink:
        link = await netlink.link(node.device)
        tree = htb_tree(default_table(), rate, link.limits)
        classes: Sequence[int] = (*tree.bands, tree.unmarked) if agents else ()
        while not stop.is_set():
            counters = await netlink.statistics(link.index)
            by_class = tuple(counters[one].bytes for one in classes)
            total = max((one.bytes for one in counters.values()), default=0)
            series.samples.append(Sample(time.perf_counter(), total, by_class))
            await asyncio.sleep(series.period_s)
