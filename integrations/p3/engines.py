"""The engines that there are, and which of them `engine="auto"` takes.

A shim knows engines through `EngineKind` alone; `distribute(engine=...)` takes one that is not
listed here as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from p3.codecs import CODECS
from p3.coded import CodedServer
from p3.cuts import Cutting, least_delay
from p3.default_group import exchange_over_default_group
from p3.engine import ANY_NETWORK, Engine, EngineStatistics, Job, Network, P3Error
from p3.groups import GlooGroups
from p3.ps import PORT_BUFFER
from p3.remote_update import UpdatingEngine
from p3.schedule import Order
from p3.server_update import Recipe
from p3.servers import open_summing, open_updating
from p3.slicing import DEFAULT_SLICE_NUMEL, Parameter, SlicePlan, make_plan

NO_CODEC = "none"
EngineName = Literal["auto", "groups", "ps"]
Cut = Callable[[Sequence[Parameter], int, int, Sequence[int]], SlicePlan]
"""Parameters, workers, the most elements in a slice, and servers → slices (`make_plan`)."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What the user chose that some engine cares for; the others do not look at it.

    `port_buffer`: the bytes that the switch port in front of a node holds. `network`: how ranks
    reach each other, and for how long one may be silent. `codec` is what slices travel as.
    """

    port_buffer: int = PORT_BUFFER
    network: Network = ANY_NETWORK
    codec: str = NO_CODEC


@dataclass(frozen=True, slots=True)
class EngineKind:
    """One way to move slices.

    `open` is called on every rank together, with torch.distributed initialised, and may raise
    P3Error. `slice_numel` is the most elements in a slice unless the user says otherwise. `serves`
    says that it sums slices at servers, which the user may choose. `open_updating` opens it with
    servers that update, if it can. `cut` makes the slices, `order` says which go first, and
    `cutting` which share a band. `codes` says that slices may travel encoded.
    """

    name: str
    slice_numel: int
    open: Callable[[Job, EngineOptions], Engine]
    serves: bool = False
    open_updating: Callable[[Job, Recipe, EngineOptions], UpdatingEngine] | None = None
    cut: Cut = make_plan
    order: Order = "iteration"
    cutting: Cutting = least_delay
    codes: bool = False


class Alone:
    """Engine for a world of one rank: a payload is its own sum. No thread, no socket."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._done = 0
        self._closed = False

    def submit(self, index: int, iteration: int) -> None:  # noqa: ARG002
        """Slice `index` is done at once."""
        if not self._closed:
            self._done += 1
            self._job.on_done(index)

    def advance(self, position: int) -> None:
        """Nothing waits here."""

    def statistics(self) -> EngineStatistics:
        """Nothing is ever sent."""
        return EngineStatistics((), self._done)

    def close(self) -> None:
        """Nothing is held."""
        self._closed = True


ALONE = EngineKind("alone", 400_000, lambda job, _: Alone(job))
GROUPS = EngineKind(
    "groups", 400_000, lambda job, options: GlooGroups(job, network=options.network)
)
"""Gloo costs 12 messages a slice and rank, each with its wake-ups, so that its slices are larger;
the kernel preempts both kinds by the packet all the same."""


def _open_ps(job: Job, options: EngineOptions) -> Engine:
    if options.codec == NO_CODEC:
        return open_summing(job, port_buffer=options.port_buffer, network=options.network)
    return CodedServer(
        job,
        options.codec,
        exchange=exchange_over_default_group,
        network=options.network,
        port_buffer=options.port_buffer,
    )


PS = EngineKind(
    "ps",
    DEFAULT_SLICE_NUMEL,
    _open_ps,
    serves=True,
    codes=True,
    open_updating=lambda job, recipe, options: open_updating(
        job, recipe, port_buffer=options.port_buffer, network=options.network
    ),
)
ENGINES: Mapping[str, EngineKind] = {kind.name: kind for kind in (GROUPS, PS)}


def choose_engine(
    wanted: str | EngineKind,
    world_size: int,
    servers: Sequence[int] = (),
    *,
    updates: bool = False,
    codec: str = NO_CODEC,
) -> EngineKind:
    """The engine that the user means; the same on every rank that gives the same arguments.

    "auto" is "ps" where `servers` are named or are to update, or for a `codec`; no engine at all
    for one rank; else "groups": Gloo's rings have one sender a receiver, which Ethernet's shallow
    switch ports need.
    P3Error for an unknown name, or for one that has no servers where these are asked for.
    """
    if isinstance(wanted, EngineKind):
        kind = wanted
    elif wanted == "auto":
        needs_servers = bool(servers) or updates or codec != NO_CODEC
        kind = PS if needs_servers else ALONE if world_size == 1 else GROUPS
    elif wanted in ENGINES:
        kind = ENGINES[wanted]
    else:
        raise P3Error(
            f"engine {wanted!r} is unknown: choose one of auto, {', '.join(ENGINES)}, or give an "
            "EngineKind"
        )
    _check_codec(codec, kind, updates)
    if servers and not kind.serves:
        raise P3Error(f'engine {kind.name!r} has no servers: leave servers= out, or use "ps"')
    if updates and kind.open_updating is None:
        raise P3Error(f'engine {kind.name!r} has no servers that update: use "ps"')
    return kind


def _check_codec(codec: str, kind: EngineKind, updates: bool) -> None:
    if codec == NO_CODEC:
        return
    if codec not in CODECS:
        names = ", ".join((NO_CODEC, *CODECS))
        raise P3Error(f"codec {codec!r} is unknown: choose one of {names}")
    if not kind.codes:
        raise P3Error(f'engine {kind.name!r} has no codecs: leave codec= out, or use "ps"')
    if updates:
        raise P3Error('codec= is for gradients; update="server" sends parameters: leave one out')
