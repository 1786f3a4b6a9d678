"""Changes of one interface as they happen, but those made by ourselves."""

from __future__ import annotations

import errno
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from p3_shaper.channel import ChannelError, Event, open_events
from p3_shaper.describe import describe_message
from p3_shaper.errors import no_namespace, refused
from p3_shaper.linkmessage import link_of
from p3_shaper.tcmessage import parse

QDISC, CLASS, FILTER, LINK, OVERRUN = "qdisc", "class", "filter", "link", "overrun"


@dataclass(frozen=True, slots=True)
class Change:
    """What changed: `what` is "qdisc", "class", "filter", "link" or "overrun", `text` a line on it.

    "overrun" says that the kernel had more to tell than fitted: read everything again.
    """

    what: str
    removed: bool = False
    text: str = ""


class Watch:
    """An asynchronous iterator of changes, without end; subscribed on `async with`.

    Enter it before the tree is first read, and nothing falls between.
    """

    def __init__(self, namespace: str | None, index: int, name: str, own_port: int) -> None:
        self._namespace = namespace
        self._index = index
        self._name = name
        self._own_port = own_port
        self._stack = AsyncExitStack()
        self._events: AsyncIterator[Event] | None = None

    async def __aenter__(self) -> Self:
        try:
            self._events = await self._stack.enter_async_context(open_events(self._namespace))
        except OSError as error:
            raise no_namespace(self._namespace, error) from error
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._events = None
        await self._stack.aclose()

    def follow(self, index: int) -> bool:
        """Watch interface `index` from now on; whether that is another one."""
        is_other = index != self._index
        self._index = index
        return is_other

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Change:
        while True:
            if self._events is None:
                raise RuntimeError("a Watch is iterated inside `async with` only")
            try:
                change = self._change(await anext(self._events))
            except ChannelError as error:
                if error.errno != errno.ENOBUFS:
                    raise refused(f"watch interface number {self._index}", error) from error
                await self._reopen()
                return Change(OVERRUN, text="the kernel dropped notifications: all is read again")
            if change is not None:
                return change

    async def _reopen(self) -> None:
        """After an overrun the socket is of no use."""
        await self._stack.aclose()
        self._stack = AsyncExitStack()
        await self.__aenter__()

    def _change(self, event: Event) -> Change | None:
        if event.port == self._own_port:
            return None
        if event.object is None:
            link = link_of(event.payload, None)
            if link.index != self._index and (not self._name or link.name != self._name):
                return None
            # A bridge tells in the same words, by its family, that a port left it.
            removed = event.removed and event.payload[0] == socket.AF_UNSPEC
            return Change(LINK, removed, f"link {link.name} {'up' if link.is_up else 'down'}")
        index, message, _ = parse(event.object, event.payload)
        if index != self._index:
            return None
        return Change(event.object.value, event.removed, describe_message(message))
