"""The mesh at work: messages to peers, each on the band that suits how soon it is needed.

Also who is alive: every rank is connected with every other, so the kernel of a dead process's
node tells all of them at once. Of a node that is gone and of a stopped process nobody tells: each
rank's loop shows from time to time that it runs, whatever its training thread is busy with, and
any byte from a rank, on any band, counts as a sign of life.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from p3.channel import Channel, Message
from p3.engine import Network, P3Error, PeerLostError
from p3.loop import Loop
from p3.mesh import ERROR_TYPES, Link
from p3.schedule import Schedule
from p3.wire import (
    ByeReceived,
    ErrorCode,
    ErrorReceived,
    Event,
    FrameType,
    NoteReceived,
    PayloadEnds,
    PayloadStarts,
    RemoteError,
)

GRACE_S = 0.1
"""A rank that gives up because of another one closes its connections as well; its ERROR, which
names the culprit, may be on a connection not yet looked at."""

ABORT_S = 1.0
"""How long to try to tell the others why we give up."""

BEATS = 8
"""A rank shows that it runs this often within the timeout, and is lost after one silent beat less.
Beats are counted, not seconds: after this process itself was stopped, one beat has passed."""


class User(Protocol):
    """Whom the transport tells what happens, in the loop's thread."""

    def starts(self, peer: int, event: PayloadStarts) -> memoryview:
        """Where to receive a payload. RemoteError when it may not come now."""
        ...

    def ends(self, peer: int, event: PayloadEnds) -> None:
        """The payload is there. RemoteError when it should not be."""
        ...

    def noted(self, peer: int, event: NoteReceived) -> None:
        """A note is there. RemoteError when it should not be."""
        ...

    def left(self, peer: int) -> None:
        """A rank has said BYE, and all it sent before is there."""
        ...

    def failed(self, error: P3Error) -> None:
        """Nothing goes any more. Called once, if at all."""
        ...


class Transport:
    """Rank `rank`'s. Everything runs in the loop's thread.

    `windows`, by peer, are the bytes that it may have under way on each of its connections to us.
    A peer that is silent for `timeout` seconds is lost.
    """

    def __init__(
        self,
        links: Iterable[Link],
        schedule: Schedule,
        loop: Loop,
        user: User,
        *,
        rank: int,
        windows: Mapping[int, int],
        timeout: float = Network.timeout,
    ) -> None:
        self.position = 0
        self.payload_bytes_by_band = [0] * schedule.bands
        self.failure: P3Error | None = None
        self._rank = rank
        self._schedule = schedule
        self._loop = loop
        self._user = user
        self._numbers = itertools.count()
        self._outgoing: dict[int, dict[int, Channel]] = {}  # by peer and band
        self._channels: dict[int, list[Channel]] = {}
        for link in sorted(links, key=lambda link: link.band.index):
            window = None if link.outgoing else windows.get(link.peer)
            channel = self._channel(link, window)
            self._channels.setdefault(link.peer, []).append(channel)
            if link.outgoing:
                self._outgoing.setdefault(link.peer, {})[channel.band] = channel
        self._said_bye = dict.fromkeys(self._channels, 0)
        self._ending = False
        self._timeout = timeout
        self._silent_beats = dict.fromkeys(self._channels, 0)
        loop.after(timeout / BEATS, self._beat)

    def _channel(self, link: Link, window: int | None) -> Channel:
        return Channel(link, self._loop, self, window)

    @property
    def peers(self) -> list[int]:
        """The other ranks."""
        return list(self._channels)

    def waiting(self, peer: int) -> tuple[int, ...]:
        """How many messages to `peer` have not begun, by band."""
        return tuple(channel.waiting for channel in self._outgoing[peer].values())

    def send(
        self,
        peer: int,
        *,
        kind: FrameType,
        index: int,
        iteration: int,
        due: int,
        view: memoryview,
        on_sent: Callable[[], None] | None = None,
    ) -> None:
        """Send slice `index`'s payload. `view` stays as it is until `on_sent`."""
        message = Message(due, next(self._numbers), kind, index, iteration, view, on_sent)
        self._outgoing[peer][self._schedule.band(due, self.position)].push(message)

    def note(self, peer: int, kind: FrameType, index: int, iteration: int, body: bytes) -> None:
        """Send a note before all else, in the order of these calls."""
        message = Message(0, next(self._numbers), kind, index, iteration, memoryview(body))
        self._outgoing[peer][0].push(message)

    def advance(self, position: int) -> None:
        """What waits may be due by now; the heads are the first to be."""
        self.position = position
        for channels in self._outgoing.values():
            for channel in channels.values():
                while (head := channel.head) is not None:
                    band = self._schedule.band(head.due, position)
                    if band >= channel.band:
                        break
                    channels[band].push(channel.pop())

    def fail(self, error: P3Error, code: ErrorCode = ErrorCode.INTERNAL) -> None:
        """Give up: tell the user and all ranks why, then end the loop."""
        if self.failure is not None:
            return
        self.failure = error
        self._user.failed(error)
        self._ending = True
        for channel in self._all():
            channel.abort(code, str(error))
        self._loop.after(ABORT_S, self._loop.stop)

    def conclude(self) -> None:
        """Send what waits, say BYE, then end the loop; what a silent peer is owed is given up."""
        if self.failure is not None:
            return
        self._ending = True
        for channel in self._all():
            channel.conclude()
        self._stop_if_ended()

    def close(self) -> None:
        """Close all sockets."""
        for channel in self._all():
            channel.close()

    def name_of(self, peer: int) -> str:
        """Rank and address, for messages."""
        return f"rank {peer} at {self._outgoing[peer][0].address}"

    # What the channels tell

    def on_event(self, channel: Channel, event: Event) -> None:
        """See `channel.Owner`."""
        peer = channel.peer
        if isinstance(event, PayloadStarts):
            channel.place(self._user.starts(peer, event))
        elif isinstance(event, PayloadEnds):
            self._user.ends(peer, event)
        elif isinstance(event, NoteReceived):
            self._user.noted(peer, event)
        elif isinstance(event, ByeReceived):
            self._said_bye[peer] += 1
            if self._said_bye[peer] == len(self._channels[peer]):
                self._leave(peer)
        elif isinstance(event, ErrorReceived):
            self.fail(_error_of(event), event.code)

    def on_sent(self, band: int, count: int) -> None:
        """See `channel.Owner`."""
        self.payload_bytes_by_band[band] += count

    def on_broken(self, channel: Channel, error: RemoteError) -> None:
        """See `channel.Owner`."""
        if self._ending:
            channel.close()
            return
        text = f"{self.name_of(channel.peer)}: {error}"
        if error.code is not ErrorCode.PEER_LOST:
            self.fail(ERROR_TYPES.get(error.code, P3Error)(text), error.code)
            return
        lost = PeerLostError(f"{self.name_of(channel.peer)} is lost: {error}; see its log")
        self._loop.after(GRACE_S, lambda: self.fail(lost, ErrorCode.PEER_LOST))

    def on_progress(self) -> None:
        """See `channel.Owner`."""
        self._stop_if_ended()

    def _beat(self) -> None:
        """Show that this rank runs, and look who else does."""
        if self.failure is not None:
            return
        silent = self._silent_beats
        for peer in list(silent):
            channels = self._channels[peer]
            heard = any(channel.heard for channel in channels)
            silent[peer] = 0 if heard else silent[peer] + 1
            for channel in channels:
                channel.heard = False
            self._outgoing[peer][0].ping()
        lost = [peer for peer, beats in silent.items() if beats >= BEATS - 1]
        if lost:
            self._lose(lost)
        self._loop.after(self._timeout / BEATS, self._beat)

    def _lose(self, lost: Sequence[int]) -> None:
        if self._ending:
            for peer in lost:
                self._forget(peer)
            return
        # All stopped at about one time: beats of different ranks are a beat apart at most.
        if len(self._silent_beats) > 1 and min(self._silent_beats.values()) >= BEATS - 2:
            text = f"rank {self._rank} hears no other rank"
            cause = "its node is cut off from the network, or all the others are"
        else:
            text = f"{self.name_of(lost[0])} is lost: rank {self._rank} hears nothing of it"
            cause = "its process is stopped, its node down or the network cut"
        text += f" for {self._timeout:g} s; {cause}"
        self.fail(PeerLostError(text), ErrorCode.PEER_LOST)

    def _leave(self, peer: int) -> None:
        self._forget(peer)
        self._user.left(peer)

    def _forget(self, peer: int) -> None:
        self._silent_beats.pop(peer, None)
        for channel in self._channels[peer]:
            channel.close()

    def _stop_if_ended(self) -> None:
        """After a failure, closing too early would reset connections with our ERROR on them."""
        failed = self.failure is not None
        if self._ending and all(c.closed if failed else c.concluded for c in self._all()):
            self._loop.stop()

    def _all(self) -> Iterable[Channel]:
        return itertools.chain.from_iterable(self._channels.values())


def _error_of(event: ErrorReceived) -> P3Error:
    return ERROR_TYPES.get(event.code, P3Error)(event.text)
