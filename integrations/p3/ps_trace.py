"""What the engine `ps` tells a timeline: subclasses that stand in only where one is made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from p3.aggregator import Aggregator, Sum
from p3.arithmetic import Add, Bytes
from p3.channel import Channel, Message
from p3.loop import Loop
from p3.mesh import Link
from p3.schedule import Schedule
from p3.slice_trace import Phases, SliceTrace
from p3.slicing import SlicePlan
from p3.timeline import clock
from p3.transport import Transport, User
from p3.wire import Event, FrameType, PayloadStarts


class TracedAggregator(Aggregator):
    """Tells of each sum from its first contribution until it is complete."""

    def __init__(
        self,
        trace: SliceTrace,
        plan: SlicePlan,
        rank: int,
        payloads: Sequence[Bytes],
        adders: Mapping[str, Add],
    ) -> None:
        self._trace = trace
        self._first: dict[int, int] = {}
        super().__init__(plan, rank, payloads, adders)

    def reserve(self, index: int, iteration: int, rank: int) -> memoryview:
        """See Aggregator."""
        self._first.setdefault(index, clock())
        return super().reserve(index, iteration, rank)

    def arrived(self, index: int, rank: int) -> Sum | None:
        """See Aggregator."""
        return self._told(super().arrived(index, rank))

    def add_own(self, index: int, iteration: int) -> Sum | None:
        """See Aggregator."""
        self._first.setdefault(index, clock())
        self._trace.enters(index, "aggregation")
        return self._told(super().add_own(index, iteration))

    def _told(self, total: Sum | None) -> Sum | None:
        if total is not None:
            began = self._first.pop(total.index)
            self._trace.beside("sum of", total.index, total.iteration, [("aggregation", began)])
        return total


class TracedChannel(Channel):
    """Tells when a payload begins to leave, and when the kernel has all of it.

    `sums` has the phases of every sum on its way out, by the message's number.
    """

    def __init__(
        self,
        link: Link,
        loop: Loop,
        owner: Transport,
        window: int | None,
        *,
        trace: SliceTrace,
        sums: dict[int, Phases],
    ) -> None:
        self._trace = trace
        self._sums = sums
        super().__init__(link, loop, owner, window)

    def push(self, message: Message) -> None:
        """See Channel."""
        if message.kind is FrameType.SUM:
            self._sums.setdefault(message.number, [("queued", clock())])
        super().push(message)

    def _begin(self) -> bool:
        begun = super()._begin()
        message = self._current
        if begun and message is not None:
            if message.kind is FrameType.PUSH:
                self._trace.enters(message.index, "sending")
            elif message.kind is FrameType.SUM:
                self._sums[message.number].append(("sending", clock()))
        return begun

    def _took(self, count: int) -> bool:
        message = self._current
        complete = super()._took(count)
        if complete and message is not None:
            if message.kind is FrameType.PUSH:
                self._trace.enters(message.index, "aggregation")
            elif message.kind is FrameType.SUM:
                what, phases = f"to rank {self.peer}:", self._sums.pop(message.number)
                self._trace.beside(what, message.index, message.iteration, phases)
        return complete


class TracedTransport(Transport):
    """Transport over traced channels; tells when a sum begins to come back."""

    def __init__(
        self,
        trace: SliceTrace,
        links: Iterable[Link],
        schedule: Schedule,
        loop: Loop,
        user: User,
        *,
        rank: int,
        windows: Mapping[int, int],
        timeout: float,
    ) -> None:
        self._trace = trace
        self._sums: dict[int, Phases] = {}
        super().__init__(links, schedule, loop, user, rank=rank, windows=windows, timeout=timeout)

    def on_event(self, channel: Channel, event: Event) -> None:
        """See Transport."""
        if isinstance(event, PayloadStarts) and event.type is FrameType.SUM:
            self._trace.enters(event.index, "return")
        super().on_event(channel, event)

    def _channel(self, link: Link, window: int | None) -> Channel:
        return TracedChannel(link, self._loop, self, window, trace=self._trace, sums=self._sums)
