"""What moves slices, seen from the shim: hand a payload over, hear when its sum is in.

An engine knows nothing of modules or optimizers; a shim knows engines through this protocol only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from p3.arithmetic import Add, Bytes
from p3.schedule import Schedule
from p3.slice_trace import SliceTrace
from p3.slicing import SlicePlan
from p3_shaper.bands import BandTable


class P3Error(RuntimeError):
    """Training cannot go on; the message says what happened, on which rank, and what to do."""


class PeerLostError(P3Error):
    """A rank went away or does not answer."""


class PlanMismatchError(P3Error):
    """Ranks disagree about the model's slices or settings."""


@dataclass(frozen=True, slots=True)
class Agreed:
    """What all ranks share, and this rank's number."""

    name: str
    rank: int
    plan: SlicePlan
    schedule: Schedule
    table: BandTable


@dataclass(frozen=True, slots=True)
class Job:
    """What an engine needs to start.

    `name` tells this job from others of the same ranks. `payloads[i]` is slice i's buffer of
    `payload_bytes`; a server that does not work has none. The engine owns it from `submit` until
    it reports the slice done, and leaves the sum over ranks in it; `adders` has an addition for
    every dtype of the plan. `on_done(slice index)` and `on_error(error)` are called from the
    engine's threads, must return quickly and never raise; after `on_error` no slice is ever done.
    `trace`, where there is one, wants to be told of the phases of a slice between the two.
    """

    name: str
    rank: int
    plan: SlicePlan
    schedule: Schedule
    table: BandTable
    payloads: Sequence[Bytes]
    adders: Mapping[str, Add]
    on_done: Callable[[int], None]
    on_error: Callable[[P3Error], None]
    trace: SliceTrace | None = None


@dataclass(frozen=True)
class Network:
    """How ranks reach each other, and for how long one may be silent.

    `timeout`, in seconds: so long ranks wait for each other to connect, and after it one that gave
    no sign of life counts as lost. `interface` is the one to use, None for the default
    (see `hosts.choose_host`).
    """

    timeout: float = 30.0
    interface: str | None = None


ANY_NETWORK = Network()
"""What counts unless the user says otherwise."""


@dataclass(frozen=True, slots=True)
class EngineStatistics:
    """What an engine has handed to the network since it started, without headers."""

    payload_bytes_by_band: tuple[int, ...]
    slices_done: int

    @property
    def payload_bytes_sent(self) -> int:
        """In all bands."""
        return sum(self.payload_bytes_by_band)


class Engine(Protocol):
    """Sums slices over ranks, most urgent first."""

    def submit(self, index: int, iteration: int) -> None:
        """Hand over slice `index`, whose payload is filled. Each slice once an iteration.

        Returns at once; any thread may call. Does nothing after an error was reported.
        """
        ...

    def advance(self, position: int) -> None:
        """This node is at `position` (see `Schedule`); what is queued may become more urgent."""
        ...

    def statistics(self) -> EngineStatistics:
        """Counters since the start."""
        ...

    def close(self) -> None:
        """Release sockets and threads. What is not done yet is given up."""
        ...
