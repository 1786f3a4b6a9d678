"""The engine `groups`: one Gloo process group a band moves the bytes; P3 orders and marks them.

Gloo's ring all-reduce has one sender a receiver, so shallow switch ports do not notice it (small
slices go directly, see `sums`). Every rank must issue a group's collectives in one order: the one
in which a link would send them that always takes the most urgent slice there is. A slice handed
over early waits for its turn.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from p3.adopt import connections_since, socket_inodes
from p3.engine import EngineStatistics, Job, P3Error, PeerLostError
from p3.gloo import Device, GlooGroup, abandon, open_gloo
from p3.hangup import Address, HangupWatch, address_of
from p3.schedule import service_order
from p3.sockets import mark, tune
from p3.sums import Sum, TracedSum, choose_sum
from p3.tensors import tensor_of

GRACE_SECONDS = 3.0
CLOSE_SECONDS = 2.0

Gradient = torch.futures.Future[list[torch.Tensor]]


class BandQueue:
    """The slices of one band in their fixed order; tells which may be issued now. Pure.

    A slice handed over before its turn waits; each slice comes once an iteration.
    """

    def __init__(self, order: Sequence[int]) -> None:
        self._order = tuple(order)
        self._early: set[tuple[int, int]] = set()
        self._turn = 0
        self._iteration = 0

    def add(self, index: int, iteration: int) -> list[int]:
        """Slice `index` is there; the slices to issue now, in order."""
        self._early.add((iteration, index))
        issue: list[int] = []
        while (self._iteration, self._order[self._turn]) in self._early:
            self._early.remove((self._iteration, self._order[self._turn]))
            issue.append(self._order[self._turn])
            self._turn += 1
            if self._turn == len(self._order):
                self._turn = 0
                self._iteration += 1
        return issue


def band_orders(job: Job) -> tuple[tuple[int, ...], ...]:
    """For every band in use, its slices in the order in which every rank issues them."""
    orders: list[list[int]] = [[] for _ in range(job.schedule.bands)]
    for index in service_order(job.plan, job.schedule):
        orders[job.schedule.push_band(job.plan.slices[index].layer)].append(index)
    return tuple(map(tuple, orders))


class GlooGroups:
    """Engine over Gloo. Every rank constructs it together, with torch.distributed initialised.

    Raises RuntimeError (Gloo's own text) when a rank cannot be reached within `timeout_s`.
    """

    def __init__(self, job: Job, *, timeout_s: float = 300.0) -> None:
        self._job = job
        self._bands = [job.schedule.push_band(piece.layer) for piece in job.plan.slices]
        self._sums: list[Sum] = [
            choose_sum(tensor_of(payload, piece.dtype), job.plan.world_size)
            for payload, piece in zip(job.payloads, job.plan.slices, strict=True)
        ]
        if (trace := job.trace) is not None:
            self._sums = [TracedSum(way, trace, index) for index, way in enumerate(self._sums)]
        self._changed = threading.Condition()
        self._waiting = 0  # handed over, not done
        self._under_way = 0  # issued to Gloo, not done
        self._done = 0
        self._bytes = [0] * job.schedule.bands
        self._failure = ""  # Gloo's words on the first collective that failed
        self._error: P3Error | None = None
        self._gone: tuple[int, str] | None = None
        self._queues = [BandQueue(order) for order in band_orders(job)]
        self._groups: list[GlooGroup] = []
        sockets: list[socket.socket] = []
        device = Device()
        for band in range(job.schedule.bands):
            group, opened = _open_group(job, device, band, timeout_s)
            self._groups.append(group)
            sockets += opened
        self._watch = HangupWatch(
            sockets, _ranks_by_address(sockets), self._hangup, self._unexplained
        )

    def submit(self, index: int, iteration: int) -> None:
        """Hand over slice `index`; Gloo gets it when it is its turn in its band."""
        band = self._bands[index]
        # Held while issuing: no other thread may come between the queue's order and Gloo's.
        with self._changed:
            if self._error is not None:
                return
            self._waiting += 1
            if self._gone is None:
                for ready in self._queues[band].add(index, iteration):
                    self._issue(band, ready)
                return
        self._lost(*self._gone)

    def advance(self, position: int) -> None:
        """Nothing to do: the order is fixed, so that all ranks agree on it."""

    def statistics(self) -> EngineStatistics:
        """What this rank sent and got back."""
        with self._changed:
            return EngineStatistics(tuple(self._bytes), self._done)

    def close(self) -> None:
        """Shut every connection down, which ends what is under way. Again is harmless."""
        with self._changed:
            self._error = self._error or P3Error("the engine is closed")
        self._watch.close()
        with self._changed:
            ended = self._changed.wait_for(lambda: self._under_way == 0, CLOSE_SECONDS)
        if not ended:
            for group in self._groups:
                abandon(group)
        self._groups.clear()

    def _issue(self, band: int, index: int) -> None:
        self._under_way += 1
        self._bytes[band] += self._sums[index].sent_bytes
        future = self._sums[index].start(self._groups[band]).get_future()
        future.add_done_callback(self._when_done(index))

    def _when_done(self, index: int) -> Callable[[Gradient], None]:
        def done(future: Gradient) -> None:
            failure = ""
            try:
                future.value()
                self._sums[index].finish()
            except RuntimeError as error:
                failure = str(error)
            with self._changed:
                self._under_way -= 1
                if failure:
                    self._failure = failure
                else:
                    self._waiting -= 1
                    self._done += 1
                self._changed.notify_all()
            if failure:
                # Gloo may notice a dead rank first, and names none.
                self._watch.doubt()
            else:
                self._job.on_done(index)

        return done

    def _hangup(self, rank: int, host: str) -> None:
        """A rank closed a connection: an end like any other, or did it still owe something?"""
        with self._changed:
            if self._gone is None:
                self._gone = (rank, host)
            done = -1
            while self._waiting and done != self._done and not self._failure:
                done = self._done
                self._changed.wait(GRACE_SECONDS)
            if not self._waiting:
                return
        self._lost(rank, host)

    def _unexplained(self) -> None:
        """A collective failed and every rank is still there."""
        self._fail(P3Error(f"rank {self._job.rank}: Gloo could not sum a slice: {self._failure}"))

    def _lost(self, rank: int, host: str) -> None:
        self._fail(
            PeerLostError(
                f"rank {self._job.rank}: rank {rank} ({host}) closed its connection before the "
                "iteration was complete; look at that rank's own error first"
            )
        )

    def _fail(self, error: P3Error) -> None:
        with self._changed:
            if self._error is not None:
                return
            self._error = error
            self._changed.notify_all()
        self._job.on_error(error)


def _open_group(
    job: Job, device: Device, band: int, timeout_s: float
) -> tuple[GlooGroup, list[socket.socket]]:
    """A Gloo group for `band` on marked, tuned connections, and duplicates of these."""
    before = socket_inodes()
    group = open_gloo(device, f"p3/{job.name}/{band}", job.rank, job.plan.world_size, timeout_s)
    opened = connections_since(before)
    for connection in opened:
        tune(connection)
        mark(connection, job.table.dscps[band])
    return group, opened


def _ranks_by_address(sockets: Sequence[socket.socket]) -> dict[Address, int]:
    """Which rank is at the far end, for every rank's every connection."""
    names = [address_of(connection.getsockname()) for connection in sockets]
    everyone: list[list[Address]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(everyone, names)
    return {name: rank for rank, theirs in enumerate(everyone) for name in theirs}
