"""From the tree that is there to the tree that is wanted, in steps that can be taken back. Pure.

Changes rather than replacements: a class change loses no packet, a new root the whole backlog.
What is foreign stays, unless a takeover is asked for.
"""

from __future__ import annotations

from p3_shaper.difference import difference, needs_new_root
from p3_shaper.encode_u32 import encode_filter
from p3_shaper.operations import Operation, make, messages_of, put_root, remove
from p3_shaper.parts import Qdisc
from p3_shaper.replay import ReplayError, check
from p3_shaper.tcmessage import INGRESS_HANDLE, TcMessage, handle_text
from p3_shaper.tree import REDIRECT_PRIORITY, Tree

__all__ = ["ForeignRootError", "Operation", "PlanError", "clear", "is_ours", "plan", "put_back"]


class PlanError(ValueError):
    """A tree that may not be reached from what is there; the message says what to do."""


class ForeignRootError(PlanError):
    """There is a qdisc that is not ours, and nobody allowed to take over."""

    def __init__(self, root: Qdisc) -> None:
        super().__init__(
            f"there is a {root.kind} qdisc with handle {handle_text(root.handle)} that is not "
            "ours: allow a takeover (it is put back afterwards), or remove it yourself"
        )
        self.root = root


def plan(wanted: Tree, observed: Tree, *, takeover: bool = False) -> list[Operation]:
    """The operations, in order, that make `observed` into `wanted`; none if it is already.

    Raises ForeignRootError if another's qdisc is at the root and there is no `takeover`, PlanError
    if that one could not be put back.
    """
    top, there = wanted.root, observed.root
    if top is None:
        raise PlanError("the wanted tree has no root; clear() removes what is ours")
    if there is None:
        return make(messages_of(wanted))
    if is_ours(top.major, observed):
        if not needs_new_root(wanted, observed):
            return list(difference(wanted, observed))
        return [_remove_root(observed), *make(messages_of(wanted))]
    if not takeover:
        raise ForeignRootError(there)
    try:
        check(observed.messages)
    except ReplayError as error:
        raise PlanError(str(error)) from error
    return put_root(messages_of(wanted), messages_of(observed))


def clear(observed: Tree, major: int) -> list[Operation]:
    """The operations that remove what is ours under `major`; the kernel's default comes back.

    At an ingress hook only our redirect goes, if there are filters of others too.
    """
    if observed.root is None or not is_ours(major, observed):
        return []
    if observed.root.handle != INGRESS_HANDLE:
        return [_remove_root(observed)]
    ours = [item for item in observed.filters if item.priority == REDIRECT_PRIORITY]
    if len(ours) == len(observed.filters) and not observed.other:
        return [_remove_root(observed)]
    return [remove(encode_filter(item)) for item in ours]


def put_back(messages: tuple[TcMessage, ...], observed: Tree, major: int) -> list[Operation]:
    """The operations that put `messages` (`Tree.messages`, taken earlier) where ours is now.

    None if they are there already. Raises PlanError if by now there is a root that is not ours.
    """
    if messages == messages_of(observed):
        return []
    if observed.root is not None and not is_ours(major, observed):
        raise PlanError(
            f"the root is now a {observed.root.kind} qdisc {handle_text(observed.root.handle)} "
            "that is neither ours nor the saved one: it was left alone"
        )
    if not messages:
        return clear(observed, major)
    return put_root(messages, messages_of(observed))


def is_ours(major: int, observed: Tree) -> bool:
    """By the root's major; at ingress, where all have the same, by our filter's priority."""
    root = observed.root
    if root is None:
        return False
    if root.handle == INGRESS_HANDLE:
        return any(item.priority == REDIRECT_PRIORITY for item in observed.filters)
    return root.major == major


def _remove_root(observed: Tree) -> Operation:
    root, *below = messages_of(observed)
    return remove(root, below)
