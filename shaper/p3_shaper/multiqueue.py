"""A tree for each transmit queue of an interface, side by side below an mq root. Pure.

A root of another kind gives all transmit queues one lock. Below mq each has its own, so that
senders on several cores do not wait for each other; but nothing is ordered or shared between
queues: a flow's queue is chosen by its core (XPS) or its hash before any band counts.
"""

from __future__ import annotations

from dataclasses import replace

from p3_shaper.pieces import class_id
from p3_shaper.rates import Rate
from p3_shaper.tcmessage import TC_ROOT
from p3_shaper.tree import AGENT_MAJOR, MAJORS, MAX_QUEUES, Tree, TreeError


def queue_rate(rate: Rate, queues: int) -> Rate:
    """What one of `queues` may send so that all together keep to `rate`."""
    return Rate(rate.bits_per_second // queues).whole_bytes()


def mq_tree(one: Tree, queues: int) -> Tree:
    """`one`, a tree of the agent's, for each of `queues` transmit queues.

    Raises TreeError for fewer than 2 or more than MAX_QUEUES.
    """
    if not 2 <= queues <= MAX_QUEUES:
        raise TreeError(
            f"{queues} transmit queues: mq is for 2 to {MAX_QUEUES}; choose the mode without mq, "
            "or another number of queues with `ethtool -L`"
        )
    root = replace(one.qdiscs[0], kind="mq", handle=AGENT_MAJOR << 16, parent=TC_ROOT, options=None)
    copies = [_moved(one, number) for number in range(queues)]
    return Tree(
        qdiscs=(root, *(item for copy in copies for item in copy.qdiscs)),
        classes=tuple(item for copy in copies for item in copy.classes),
        filters=tuple(item for copy in copies for item in copy.filters),
        bands=copies[0].bands,
        unmarked=copies[0].unmarked,
        queues=queues,
    )


def _moved(one: Tree, number: int) -> Tree:
    """`one` with its majors below those of the queue before, its root under the queue's class."""
    down = MAJORS * (number + 1) << 16

    def moved(handle: int) -> int:
        return class_id(AGENT_MAJOR, number + 1) if handle == TC_ROOT else handle - down

    return Tree(
        qdiscs=tuple(
            replace(item, handle=item.handle - down, parent=moved(item.parent))
            for item in one.qdiscs
        ),
        classes=tuple(
            replace(item, classid=item.classid - down, parent=item.parent - down)
            for item in one.classes
        ),
        filters=tuple(
            replace(item, parent=item.parent - down, classid=item.classid - down)
            for item in one.filters
        ),
        bands=tuple(item - down for item in one.bands),
        unmarked=one.unmarked - down,
    )
