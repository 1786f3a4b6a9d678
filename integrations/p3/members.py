"""Who of the ranks lives: for an engine whose own connections do not tell.

A Gloo collective waits for its ring neighbours alone, knows nothing of a rank that is not one,
and never notices a stopped process. So every rank holds a connection of ours to every other, for
signs of life, and for last words: why a rank gives up is told to all.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from p3.default_group import exchange_over_default_group
from p3.engine import Network, P3Error
from p3.loop import Loop
from p3.mesh import Identity, code_of, join
from p3.rendezvous import Exchange, announce, job_key
from p3.schedule import Schedule
from p3.transport import Transport
from p3.wire import (
    ErrorCode,
    NoteReceived,
    PayloadEnds,
    PayloadStarts,
    RemoteError,
    SliceTable,
)
from p3.wire.frames import DIGEST_BYTES
from p3_shaper.bands import Band


class Members:
    """Every rank constructs it together, then starts it; `band` is the one for its few bytes.

    `on_left(name)` when one ended as it should, `on_error` once, if at all, when a rank is
    lost or gave up; both in a thread of its own. Raises as `mesh.join` does.
    """

    def __init__(
        self,
        rank: int,
        host: str,
        band: Band,
        on_left: Callable[[str], None],
        on_error: Callable[[P3Error], None],
        *,
        network: Network,
        exchange: Exchange = exchange_over_default_group,
    ) -> None:
        self._rank = rank
        self._on_left = on_left
        self._on_error = on_error
        listeners, endpoints = announce(exchange, host, [band], port=0)
        slices = SliceTable((), (), world_size=len(endpoints))
        settings = f"timeout {network.timeout:g} s"
        identity = Identity(rank, job_key(endpoints), bytes(DIGEST_BYTES), settings, slices)
        links = join(identity, endpoints, listeners, [band], timeout=network.timeout)
        self._loop = Loop(f"p3-members-{rank}", self._ended)
        self._transport = Transport(
            links,
            Schedule(0, ()),
            self._loop,
            self,
            rank=rank,
            windows={},
            timeout=network.timeout,
        )

    def start(self) -> None:
        """Watch from now on."""
        self._loop.start()

    def fail(self, error: P3Error) -> None:
        """Tell all ranks why this one gives up, unless another one was first. Any thread."""
        self._loop.call(partial(self._transport.fail, error, code_of(error)))

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """Run `call` in `seconds`, in the thread of `on_left`. Any thread; in vain at the end."""
        self._loop.call(partial(self._loop.after, seconds, call))

    def close(self) -> None:
        """Say goodbye, end the thread. Again is harmless."""
        self._loop.call(self._transport.conclude)
        self._loop.join()

    def _ended(self, crashed: bool) -> None:
        self._transport.close()
        if crashed:
            self._on_error(P3Error(f"rank {self._rank}: a defect in p3 ended the engine"))

    # What the transport tells

    def starts(self, peer: int, event: PayloadStarts) -> memoryview:
        """See `transport.User`."""
        raise RemoteError(ErrorCode.PROTOCOL, f"rank {peer} sends {event.type.name} where none is")

    def ends(self, peer: int, event: PayloadEnds) -> None:
        """See `transport.User`: nothing has started."""

    def noted(self, peer: int, event: NoteReceived) -> None:
        """See `transport.User`: none is sent here."""

    def left(self, peer: int) -> None:
        """See `transport.User`."""
        self._on_left(self._transport.name_of(peer))

    def failed(self, error: P3Error) -> None:
        """See `transport.User`."""
        self._on_error(error)
