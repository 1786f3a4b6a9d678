"""The systems that P3 is compared with, as engines: all on P3's own transport.

So that only what a system decides differs: how it cuts, which slice goes first, whether results
are asked for, and whether a server waits for all workers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from p3.asynchronous import AsynchronousServer
from p3.default_group import exchange_over_default_group
from p3.engine import Engine, Job, P3Error
from p3.engines import GROUPS, EngineKind, EngineOptions
from p3.kvstore import make_kvstore_plan
from p3.ps import ParameterServer
from p3.remote_update import UpdatingEngine
from p3.server_update import Recipe
from p3.slicing import make_plan
from p3.systems import KVSTORE_SPLIT_NUMEL, SYSTEMS, System

_Open = Callable[[Job, EngineOptions], Engine]
_OpenUpdating = Callable[[Job, Recipe, EngineOptions], UpdatingEngine]


def engine_of(system: System) -> EngineKind:
    """An engine that works as `system` does. ValueError for one that P3's transport has not."""
    if system.cut == "buckets":
        raise ValueError(f"{system.name} has a transport of its own: use DistributedDataParallel")
    if system.collective == "ring":
        return EngineKind(system.name, system.slice_numel, GROUPS.open, cutting=system.cutting)
    whole = system.cut == "kvstore"
    return EngineKind(
        system.name,
        KVSTORE_SPLIT_NUMEL if whole else system.slice_numel,
        _summing(system) if system.synchronous else _refuse,
        open_updating=None if system.synchronous else _asynchronous(system),
        cut=make_kvstore_plan if whole else make_plan,
        order=system.order,
        cutting=system.cutting,
    )


def _summing(system: System) -> _Open:
    def open_engine(job: Job, options: EngineOptions) -> Engine:
        return ParameterServer(
            job,
            exchange=exchange_over_default_group,
            network=options.network,
            port_buffer=options.port_buffer if system.incast_control else 0,
            pulls=system.pull,
        )

    return open_engine


def _asynchronous(system: System) -> _OpenUpdating:
    def open_engine(job: Job, recipe: Recipe, options: EngineOptions) -> UpdatingEngine:
        return AsynchronousServer(
            job,
            recipe,
            exchange=exchange_over_default_group,
            network=options.network,
            port_buffer=options.port_buffer if system.incast_control else 0,
            pulls=system.pull,
        )

    return open_engine


def _refuse(job: Job, options: EngineOptions) -> Engine:  # noqa: ARG001
    raise P3Error('asynchronous SGD is what servers do: distribute(..., update="server")')


COMPARED: Mapping[str, EngineKind] = {
    name: engine_of(system) for name, system in SYSTEMS.items() if system.cut != "buckets"
}
"""By the system's name; asynchronous ones are for `update="server"`."""
