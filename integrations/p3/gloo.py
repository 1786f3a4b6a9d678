"""The few calls on Gloo that P3 makes, typed: torch's stubs lag behind its bindings here."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Protocol, cast

import torch
import torch.distributed as dist

THREADS_PER_GROUP = 4
"""Collectives of a band under way at once: while one waits for a neighbour, others send."""


STALL = timedelta(days=1)
"""How long a collective may wait for a rank: that it lives is watched elsewhere, and whether it
computes or is being debugged is nobody's business."""


class Work(Protocol):
    """A collective under way."""

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """Its result, or the RuntimeError that ended it."""
        ...


class GlooGroup(Protocol):
    """A process group over Gloo."""

    def allreduce(self, tensors: list[torch.Tensor]) -> Work:
        """Sum `tensors[0]` over the ranks, in place."""
        ...

    def alltoall_base(
        self,
        output: torch.Tensor,
        input: torch.Tensor,  # noqa: A002  (Gloo's own name)
        output_splits: Sequence[int],
        input_splits: Sequence[int],
    ) -> Work:
        """Row r of `input` to rank r, what rank r sent to row r of `output`; no splits: rows."""
        ...


class Device:
    """The interface with address `host`, and one thread that polls the connections of all groups.

    Gloo listens there, on a port of the kernel's choice, and asks nobody who connects for a token.
    """

    def __init__(self, host: str) -> None:
        bindings = cast(Any, dist.ProcessGroupGloo)
        self.handle: object = bindings.create_device(hostname=host)


def open_gloo(device: Device, prefix: str, rank: int, size: int, timeout_s: float) -> GlooGroup:
    """Connect every rank with every other; collective. `prefix` keeps groups apart in the store.

    RuntimeError, with Gloo's text, when a rank does not come within `timeout_s` seconds.
    """
    # Not dist.new_group: that has no say in threads, and destroy_process_group() in the user's
    # script would end it while the last iteration's slices are still owed to other ranks.
    bindings = cast(Any, dist.ProcessGroupGloo)
    options = bindings._Options()
    options._threads = THREADS_PER_GROUP
    options._timeout = timedelta(seconds=timeout_s)
    options._devices = [device.handle]
    store = dist.distributed_c10d.PrefixStore(prefix, dist.distributed_c10d._get_default_store())
    group = bindings(store, rank, size, options)
    group._set_default_timeout(STALL)
    return cast(GlooGroup, group)


def abandon(group: GlooGroup) -> None:
    """Keep a group whose collectives do not end from ever being destroyed.

    Its destructor waits for them, and a ring all-reduce that was sending when the connection
    closed waits out its timeout all the same (seen with torch 2.13).
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
