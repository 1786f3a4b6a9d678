"""The engine `groups`: one Gloo process group a band moves the bytes; P3 orders and marks them.

Gloo's ring all-reduce has one sender a receiver, so shallow switch ports do not notice it (small
slices go directly, see `sums`). Every rank must issue a group's collectives in one order: the one
in which a link would send them that always takes the most urgent slice there is. A slice handed
over early waits for its turn.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import torch

from p3.adopt import connections_since, listeners_since, socket_inodes
from p3.band_queue import BandQueue
from p3.default_group import exchange_over_default_group
from p3.engine import ANY_NETWORK, EngineStatistics, Job, Network, P3Error, PeerLostError
from p3.gloo import Device, GlooGroup, abandon, open_gloo
from p3.hosts import choose_host
from p3.members import Members
from p3.schedule import service_order
from p3.sockets import deafen, limit_silence, mark, tune
from p3.sums import Sum, TracedSum, choose_sum
from p3.tensors import summands_of

DOUBT_S = 1.0
"""Gloo may notice a lost rank first, and names none: how long to wait for who does."""

CLOSE_S = 2.0

Gradient = torch.futures.Future[list[torch.Tensor]]


def band_orders(job: Job) -> tuple[tuple[int, ...], ...]:
    """For every band in use, its slices in the order in which every rank issues them."""
    orders: list[list[int]] = [[] for _ in range(job.schedule.bands)]
    for index in service_order(job.plan, job.schedule):
        orders[job.schedule.push_band(job.plan.slices[index].layer)].append(index)
    return tuple(map(tuple, orders))


class GlooGroups:
    """Engine over Gloo. Every rank constructs it together, with torch.distributed initialised.

    Raises P3Error when the ranks do not find together within the network's timeout.
    """

    def __init__(self, job: Job, *, network: Network = ANY_NETWORK) -> None:
        self._job = job
        self._timeout = network.timeout
        self._bands = [job.schedule.push_band(piece.layer) for piece in job.plan.slices]
        self._sums: list[Sum] = [
            choose_sum(summands_of(payload, piece.dtype), job.plan.world_size)
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
        self._gone = ""  # the first rank that ended
        self._queues = [BandQueue(order) for order in band_orders(job)]
        self._groups: list[GlooGroup] = []
        self._sockets: list[socket.socket] = []
        host = choose_host(exchange_over_default_group, network.interface)
        self._members = Members(
            job.rank, host, job.table.bands[0], self._left, self._fail, network=network
        )
        self._members.start()
        try:
            self._open(host)
        except RuntimeError as error:
            reason = self._reason(
                f"rank {job.rank} cannot open a Gloo group with all ranks from {host}: {error}"
            )
            self.close()
            raise reason from error

    def submit(self, index: int, iteration: int) -> None:
        """Hand over slice `index`; Gloo gets it when it is its turn in its band."""
        band = self._bands[index]
        # Held while issuing: no other thread may come between the queue's order and Gloo's.
        with self._changed:
            if self._error is not None:
                return
            self._waiting += 1
            if not self._gone:
                for ready in self._queues[band].add(index, iteration):
                    self._issue(band, ready)
                return
        self._lost()

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
        self._members.close()
        for connection in self._sockets:
            with suppress(OSError):  # the peer may have been first
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        self._sockets.clear()
        with self._changed:
            ended = self._changed.wait_for(lambda: self._under_way == 0, CLOSE_S)
        if not ended:
            for group in self._groups:
                abandon(group)
        self._groups.clear()

    def _open(self, host: str) -> None:
        """A Gloo group a band, on marked, tuned connections."""
        job = self._job
        world_size = job.plan.world_size
        at_first = socket_inodes()
        device = Device(host)
        for band in range(job.schedule.bands):
            before = socket_inodes()
            prefix = f"p3/{job.name}/{band}"
            self._groups.append(open_gloo(device, prefix, job.rank, world_size, self._timeout))
            for connection in connections_since(before):
                self._sockets.append(connection)
                tune(connection)
                limit_silence(connection, self._timeout)
                mark(connection, job.table.dscps[band])
        # Gloo listens to the end and believes whoever connects; all that are wanted have.
        for listener in listeners_since(at_first):
            with listener:
                deafen(listener)

    def _reason(self, ours: str) -> P3Error:
        """Why this engine does not open: what other ranks say, else `ours`, which they hear."""
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None, DOUBT_S)
        self._fail(PeerLostError(ours))
        with self._changed:
            assert self._error is not None
            return self._error

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
                self._members.after(DOUBT_S, self._unexplained)
            else:
                self._job.on_done(index)

        return done

    # In the members' thread

    def _left(self, name: str) -> None:
        """A rank has ended: as all do, or did it still owe something?

        Then Gloo fails at its neighbours, as a rule at once; see `gloo.abandon` for the others.
        """
        with self._changed:
            self._gone = self._gone or name
            done = self._done
        self._members.after(self._timeout, partial(self._check_gone, done))

    def _check_gone(self, done_before: int) -> None:
        with self._changed:
            waiting, done = self._waiting, self._done
        if waiting and (done == done_before or self._failure):
            self._lost()
        elif waiting:
            self._members.after(self._timeout, partial(self._check_gone, done))

    def _unexplained(self) -> None:
        """A collective failed and every rank is still there."""
        if self._gone:
            self._lost()
        else:
            self._fail(
                P3Error(f"rank {self._job.rank}: Gloo could not sum a slice: {self._failure}")
            )

    def _lost(self) -> None:
        self._fail(
            PeerLostError(
                f"{self._gone} has ended before the iteration was complete on rank "
                f"{self._job.rank}; look at that rank's own output first, or use "
                "p3.pytorch.join if it had fewer batches"
            )
        )

    def _fail(self, error: P3Error) -> None:
        with self._changed:
            if self._error is not None:
                return
            self._error = error
            self._changed.notify_all()
        self._members.fail(error)
        self._job.on_error(error)
