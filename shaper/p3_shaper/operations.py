"""One step of a plan: says what it does, does it, takes itself back. Pure but for the sender."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from p3_shaper.describe import describe_message
from p3_shaper.encode import encode_class, encode_qdisc
from p3_shaper.encode_u32 import encode_filter
from p3_shaper.replay import in_order
from p3_shaper.tcmessage import Object, Request, TcMessage, Verb
from p3_shaper.tree import Tree
from p3_shaper.u32tables import additions


class Sender(Protocol):
    """What an operation speaks through: the kernel, or a model of it."""

    async def send(self, request: Request) -> None:
        """Carry `request` out, or raise."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One request, and the requests that take it back."""

    request: Request
    inverse: tuple[Request, ...]

    def describe(self) -> str:
        """What it does, in tc's words: `change class 7033:10 …`."""
        return f"{self.request.verb.value} {describe_message(self.request.message)}"

    async def apply(self, sender: Sender) -> None:
        """Do it; raises what `sender` raises, and then nothing was changed."""
        await sender.send(self.request)

    async def undo(self, sender: Sender) -> None:
        """Take it back; raises what `sender` raises."""
        for request in self.inverse:
            await sender.send(request)


def make(messages: Iterable[TcMessage]) -> list[Operation]:
    """Make what `messages` tell of, parents first.

    A filter's deletion is that of its priority, so that only the first of one has an inverse.
    """
    done: set[tuple[int, int, int]] = set()
    operations = []
    for request in additions(messages):
        message = request.message
        inverse: tuple[Request, ...] = (deletion(message),)
        if request.verb is Verb.DELETE:
            inverse = ()
        elif message.object is Object.FILTER:
            key = (message.parent, message.info, message.chain)
            inverse = () if key in done else inverse
            done.add(key)
        operations.append(Operation(request, inverse))
    return operations


def change(old: TcMessage, new: TcMessage) -> Operation:
    """Give what is there other options; nothing that waits in it is lost."""
    return Operation(Request(Verb.CHANGE, new), (Request(Verb.CHANGE, old),))


def remove(message: TcMessage, below: Iterable[TcMessage] = ()) -> Operation:
    """Remove what `message` made, and with it what is `below` it, parents first."""
    return Operation(deletion(message), tuple(additions((message, *below))))


def put_root(messages: tuple[TcMessage, ...], there: tuple[TcMessage, ...]) -> list[Operation]:
    """Put a tree, its root first, in place of the one that is `there` (empty: the default)."""
    if not there:
        return make(messages)
    root, *rest = messages
    back = (Request(Verb.REPLACE, there[0]), *additions(there[1:]))
    return [Operation(Request(Verb.REPLACE, root), back), *make(rest)]


def deletion(message: TcMessage) -> Request:
    """The request that removes what `message` made; a filter's removes its whole priority."""
    is_filter = message.object is Object.FILTER
    bare = TcMessage(
        message.object,
        handle=0 if is_filter else message.handle,
        parent=message.parent,
        kind=message.kind if is_filter else "",
        info=message.info,
        chain=message.chain,
    )
    return Request(Verb.DELETE, bare)


def messages_of(tree: Tree) -> tuple[TcMessage, ...]:
    """What makes `tree` when said to the kernel in order: as the kernel said it, or from values."""
    if tree.messages:
        return tree.messages
    queues = in_order((*map(encode_qdisc, tree.qdiscs), *map(encode_class, tree.classes)))
    return (*queues, *map(encode_filter, tree.filters), *tree.other)
