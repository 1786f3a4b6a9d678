"""One interface limited to a rate, out or in, and the limit taken away again."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass

from p3_shaper.errors import TcError
from p3_shaper.limits import LinkLimits
from p3_shaper.link import Link
from p3_shaper.netlink import Hook, Netlink
from p3_shaper.plan import Operation, clear, plan
from p3_shaper.rates import Rate
from p3_shaper.tree import SHAPE_MAJOR, Tree, ingress_tree, link_tree

_IFB = "ifb"
_NOT_MADE_YET = 2**31 - 1
"""Stands for the index of an ifb in a dry run."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A rate, and the bytes that may wait for it."""

    rate: Rate
    buffer_bytes: int


async def shape_out(netlink: Netlink, link: Link, limit: Limit, *, dry_run: bool) -> list[str]:
    """Limit what leaves `link`; what is done, a line each.

    Raises PlanError, TreeError, TcError.
    """
    tree = link_tree(limit.rate, limit.buffer_bytes, link.limits)
    if dry_run:
        return _lines(link.name, plan(tree, await netlink.observe(link.index)))
    return _lines(link.name, await netlink.ensure(link.index, tree))


async def shape_in(netlink: Netlink, link: Link, limit: Limit, *, dry_run: bool) -> list[str]:
    """Limit what `link` takes in: an ifb of ours gets it first, and there it is shaped.

    Raises PlanError, TreeError, TcError; an ifb that was made here goes again if the rest fails.
    """
    name = _ifb_name(link)
    ifb = await _find_ifb(netlink, name)
    made = [] if ifb else [f"{name}: add interface of kind {_IFB}"]
    async with AsyncExitStack() as undo:
        if ifb is None and not dry_run:
            ifb = await netlink.add_link(name, _IFB)
            undo.push_async_callback(netlink.remove_link, ifb)
        tree = link_tree(limit.rate, limit.buffer_bytes, _incoming(link))
        redirect = ingress_tree(ifb.index if ifb else _NOT_MADE_YET)
        if ifb is None or dry_run:
            shaped = plan(tree, await netlink.observe(ifb.index) if ifb else Tree())
            redirected = plan(redirect, await netlink.observe(link.index, Hook.INGRESS))
        else:
            shaped = await netlink.ensure(ifb.index, tree)
            redirected = await netlink.ensure(link.index, redirect)
        undo.pop_all()
    target = f"interface {ifb.index if ifb else _NOT_MADE_YET}"
    lines = [line.replace(target, name) for line in _lines(link.name, redirected)]
    return [*made, *_lines(name, shaped), *lines]


async def unshape(netlink: Netlink, link: Link, *, dry_run: bool) -> list[str]:
    """Remove what `shape_out` and `shape_in` made on `link`, and nothing else. Raises TcError."""
    done: list[str] = []
    for hook in Hook:
        operations = clear(await netlink.observe(link.index, hook), SHAPE_MAJOR)
        done += _lines(link.name, operations)
        if not dry_run:
            await netlink.apply(link.index, operations)
    ifb = await _find_ifb(netlink, _ifb_name(link))
    if ifb is not None:
        done.append(f"{ifb.name}: delete interface of kind {_IFB}")
        if not dry_run:
            await netlink.remove_link(ifb)
    return done


def _incoming(link: Link) -> LinkLimits:
    """What comes in at once: packets that GRO has put together, whatever an ifb itself says."""
    return LinkLimits(gso_max_size=link.gro_max_size, mtu=link.mtu)


def _lines(name: str, operations: Iterable[Operation]) -> list[str]:
    return [f"{name}: {operation.describe()}" for operation in operations]


def _ifb_name(link: Link) -> str:
    """By index, since a name of 15 characters has no room for a prefix."""
    return f"p3ifb{link.index}"


async def _find_ifb(netlink: Netlink, name: str) -> Link | None:
    try:
        link = await netlink.link(name)
    except TcError as error:
        if error.errno == errno.ENODEV:
            return None
        raise
    if link.kind != _IFB:
        raise TcError(
            f"the interface {name}, which p3-shape would make, is there already and of another "
            f"kind ({link.kind or 'hardware'}): rename it",
            errno.EEXIST,
        )
    return link
