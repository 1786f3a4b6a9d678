"""The engine `ps`: P3's own parameter server.

A worker pushes each slice to the slice's server; the server adds the contributions in rank order
and sends the sum to all workers at once. There is no notify and no pull (paper section 4.2).
A rank is a worker, a server, or both, which is the rule (see `SlicePlan`). Servers that do more
than sum are in `updating`.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Collection, Sequence
from functools import partial

from p3 import hosts, mesh, rendezvous
from p3.aggregator import Aggregator, ContributionError, Sum
from p3.engine import ANY_NETWORK, EngineStatistics, Job, Network, P3Error, PeerLostError
from p3.loop import Loop
from p3.ps_trace import TracedAggregator, TracedTransport
from p3.pulls import PullError, Pulls
from p3.rendezvous import Exchange
from p3.transport import Transport
from p3.wire import (
    ErrorCode,
    FrameType,
    NoteReceived,
    PayloadEnds,
    PayloadStarts,
    RemoteError,
    SliceTable,
)

PORT_BUFFER = 256_000
"""A shallow switch's port."""
BANDS_UNDER_WAY = 2


class ParameterServer:
    """Engine over DSCP-marked TCP. Every rank constructs it together.

    `exchange` tells the ranks of each other. `host` and `port` say where to listen (see
    `hosts.choose_host`; any free port); band b of a rank listens at `port` + b.
    `port_buffer` is what a switch port holds for this node, in bytes: no more is let under way to
    it (0: no limit). With `pulls`, sums are asked for, as in MXNet's KVStore (see `pulls.Pulls`).
    `ended` is set when nothing runs any more, as it is at a server that does not work once all
    workers have closed. Raises PlanMismatchError, PeerLostError or P3Error when the ranks do not
    find together.
    """

    def __init__(
        self,
        job: Job,
        *,
        exchange: Exchange,
        network: Network = ANY_NETWORK,
        host: str | None = None,
        port: int = 0,
        port_buffer: int = PORT_BUFFER,
        pulls: bool = False,
        servers_do: str = "sum",
        most_state_bytes: Sequence[int] = (),
    ) -> None:
        self._job = job
        self._most_state_bytes = most_state_bytes
        self._slices = job.plan.slices
        self._works = job.rank < job.plan.world_size
        self._views = [payload.data for payload in job.payloads]
        self._aggregator = self._new_aggregator()
        self._outstanding: dict[int, int] = {}
        self._gone: set[int] = set()
        self._done = 0
        self._pulls = Pulls(job.plan, job.rank) if pulls else None
        self._closing = False
        self.ended = threading.Event()
        bands = job.table.bands[: job.schedule.bands]
        here = host or hosts.choose_host(exchange, network.interface)
        listeners, endpoints = rendezvous.announce(exchange, here, bands, port=port)
        key = rendezvous.job_key(endpoints)
        what = f"{servers_do}, workers pull" if pulls else servers_do
        identity = _identity(job, key, network, what, self._table())
        links = mesh.join(
            identity,
            endpoints,
            listeners,
            bands,
            timeout=network.timeout,
            bands_with=bands_between(job),
        )
        nodes = [endpoint.host for endpoint in endpoints]
        under_way = min(BANDS_UNDER_WAY, len(bands))
        self._loop = Loop(f"p3-ps-{job.rank}", self._ended)
        trace = job.trace
        transport = Transport if trace is None else partial(TracedTransport, trace)
        self._transport = transport(
            links,
            job.schedule,
            self._loop,
            self,
            rank=job.rank,
            windows=receive_windows(port_buffer, nodes, job.rank, job.plan.sends, under_way),
            timeout=network.timeout,
        )
        self._loop.start()

    def submit(self, index: int, iteration: int) -> None:
        """Hand over slice `index`; it leaves when nothing more urgent waits for its peer."""
        self._loop.call(partial(self._submit, index, iteration))

    def advance(self, position: int) -> None:
        """What waits here and is due by now moves to the most urgent band."""
        self._loop.call(partial(self._transport.advance, position))

    def statistics(self) -> EngineStatistics:
        """What this rank has sent, as worker and as server."""
        return EngineStatistics(tuple(self._transport.payload_bytes_by_band), self._done)

    def close(self) -> None:
        """Send what other ranks still need from here, then release all. Again is harmless.

        Takes as long as they need, but gives those up that are silent for the timeout.
        """
        self._loop.call(self._close)
        self._loop.join()

    def _new_aggregator(self) -> Aggregator:
        job = self._job
        kind = Aggregator if job.trace is None else partial(TracedAggregator, job.trace)
        return kind(job.plan, job.rank, job.payloads, job.adders)

    def _table(self) -> SliceTable:
        plan = self._job.plan
        return SliceTable(
            sizes=[piece.payload_bytes for piece in plan.slices],
            servers=[piece.server for piece in plan.slices],
            world_size=plan.members,
            states=self._most_state_bytes,
        )

    # In the loop's thread

    def _push_view(self, index: int) -> memoryview:
        return self._views[index]

    def _sum_view(self, total: Sum) -> memoryview:
        return total.payload.data

    def _close(self) -> None:
        """What others have yet to ask for is kept for them until they have, or are gone."""
        self._closing = self._pulls is not None and self._pulls.offered
        if not self._closing:
            self._transport.conclude()

    def _submit(self, index: int, iteration: int) -> None:
        if self._transport.failure is not None:
            return
        piece = self._slices[index]
        if piece.server == self._job.rank:
            self._deliver(self._aggregator.add_own(index, iteration))
            self._check_gone()
        elif piece.server in self._gone:
            self._owed(piece.server, f"slice {index}")
        else:
            self._outstanding[index] = iteration
            due = self._job.schedule.due(iteration, piece.layer)
            self._transport.send(
                piece.server,
                kind=FrameType.PUSH,
                index=index,
                iteration=iteration,
                due=due,
                view=self._push_view(index),
            )

    def _deliver(self, total: Sum | None) -> None:
        """Send a sum, if it is complete, to all workers, once it is what they want."""
        if total is not None:
            for ready in self._summed(total):
                self._send_out(ready)

    def _summed(self, total: Sum) -> Sequence[Sum]:
        """What may be sent now that `total` is complete."""
        return (total,)

    def _send_out(self, total: Sum) -> None:
        """Send it to all workers that it is for, and keep it here if this is one."""
        everyone = range(self._job.plan.world_size)
        workers = everyone if total.worker is None else (total.worker,)
        for worker in workers:
            if worker == self._job.rank:
                continue
            if self._pulls is None:
                self._answer(worker, total)
            else:
                self._pulls.offer(worker, total)
                self._transport.note(worker, FrameType.NOTIFY, total.index, total.iteration, b"")
        if self._works and self._job.rank in workers:
            self._aggregator.keep(total)
            self._pull(total.index, total.iteration)
            self._finish(total.index)

    def _answer(self, worker: int, total: Sum) -> None:
        self._transport.send(
            worker,
            kind=FrameType.SUM,
            index=total.index,
            iteration=total.iteration,
            due=self._job.schedule.due(total.iteration, self._slices[total.index].layer),
            view=self._sum_view(total),
            on_sent=partial(self._aggregator.release, total),
        )

    def _pull(self, index: int, iteration: int) -> None:
        """Ask for what slice `index` is the last part of, if results are asked for."""
        for part in () if self._pulls is None else self._pulls.notified(index):
            server = self._slices[part].server
            self._transport.note(server, FrameType.PULL, part, iteration, b"")

    def _finish(self, index: int) -> None:
        if self._transport.failure is None:
            self._done += 1
            self._job.on_done(index)

    def _check_gone(self) -> None:
        """Whether something waits for a worker that will not contribute any more."""
        for peer in self._done_contributing():
            if peer < self._job.plan.world_size and (what := self._waits_for(peer)):
                self._owed(peer, what)

    def _done_contributing(self) -> Collection[int]:
        return self._gone

    def _waits_for(self, worker: int) -> str:
        """What others have contributed to and `worker` has not; empty if there is nothing."""
        index = self._aggregator.waits_for(worker)
        return "" if index is None else f"slice {index}"

    def _owed(self, peer: int, what: str) -> None:
        here = peer == self._job.rank
        name = f"rank {peer}" if here else self._transport.name_of(peer)
        text = f"{name} has ended, but {what} needs it; see its log, unless it had fewer batches"
        self._transport.fail(PeerLostError(text), ErrorCode.PEER_LOST)

    def _ended(self, crashed: bool) -> None:
        self._transport.close()
        self.ended.set()
        if crashed:
            self._job.on_error(P3Error(f"rank {self._job.rank}: a defect in p3 ended the engine"))

    # What the transport tells

    def starts(self, peer: int, event: PayloadStarts) -> memoryview:
        """See `transport.User`."""
        if event.type is FrameType.PUSH:
            try:
                return self._aggregator.reserve(event.index, event.iteration, peer)
            except ContributionError as error:
                raise RemoteError(ErrorCode.PROTOCOL, str(error)) from error
        if self._outstanding.get(event.index) != event.iteration:
            raise RemoteError(
                ErrorCode.PROTOCOL,
                f"a sum of slice {event.index} in iteration {event.iteration}, which is "
                f"not awaited by rank {self._job.rank}",
            )
        del self._outstanding[event.index]
        return self._views[event.index]

    def ends(self, peer: int, event: PayloadEnds) -> None:
        """See `transport.User`."""
        if event.type is FrameType.PUSH:
            self._deliver(self._aggregator.arrived(event.index, peer))
            self._check_gone()
        else:
            self._finish(event.index)

    def noted(self, peer: int, event: NoteReceived) -> None:
        """See `transport.User`."""
        wanted = self._outstanding.get(event.index) == event.iteration
        if event.type is FrameType.PULL and self._pulls is not None:
            try:
                self._answer(peer, self._pulls.take(peer, event.index, event.iteration))
            except PullError as error:
                raise RemoteError(ErrorCode.PROTOCOL, str(error)) from error
            if self._closing:
                self._close()
        elif event.type is FrameType.NOTIFY and self._pulls is not None and wanted:
            self._pull(event.index, event.iteration)
        else:
            raise RemoteError(ErrorCode.PROTOCOL, f"{event.type.name} from rank {peer}")

    def left(self, peer: int) -> None:
        """See `transport.User`."""
        self._gone.add(peer)
        for total in () if self._pulls is None else self._pulls.drop(peer):
            self._aggregator.release(total)
        if self._closing:
            self._close()
        for index in self._outstanding:
            if self._slices[index].server == peer:
                self._owed(peer, f"slice {index}")
                return
        self._check_gone()
        if not self._works and self._gone.issuperset(range(self._job.plan.world_size)):
            self._transport.conclude()

    def failed(self, error: P3Error) -> None:
        """See `transport.User`."""
        self._job.on_error(error)


def bands_between(job: Job) -> Callable[[int], frozenset[int]]:
    """By peer, the bands in which this rank or it may have something to send to the other.

    Those of the slices that one of the two serves, for pushes as for sums; and 0, for what is
    overdue, notes and signs of life, alone where neither serves the other.
    """
    served: dict[int, set[int]] = {}
    for piece in job.plan.slices:
        served.setdefault(piece.server, set()).add(job.schedule.push_band(piece.layer))

    def bands_with(peer: int) -> frozenset[int]:
        ends: tuple[int, ...] = (job.rank, peer) if job.plan.sends(job.rank, peer) else ()
        return frozenset({0}.union(*(served.get(end, ()) for end in ends)))

    return bands_with


def receive_windows(
    port_buffer: int,
    hosts: Sequence[str],
    rank: int,
    sends: Callable[[int, int], bool],
    bands: int = BANDS_UNDER_WAY,
) -> dict[int, int]:
    """What each peer of `rank` on another host may have under way to it a connection, in bytes.

    Whatever comes from other hosts then fits the node's switch port: `port_buffer` is shared by
    all pairs of a rank there that `sends` to one here, and `bands` each: if there are several, one
    takes over while another drains. 0 stands for no limit.
    """
    here = [member for member, host in enumerate(hosts) if host == hosts[rank]]
    there = [member for member, host in enumerate(hosts) if host != hosts[rank]]
    connections = bands * sum(sends(one, to) for one in there for to in here)
    if port_buffer == 0 or connections == 0:
        return {}
    return dict.fromkeys(there, port_buffer // connections)


def _identity(
    job: Job, key: bytes, network: Network, servers_do: str, slices: SliceTable
) -> mesh.Identity:
    cuts = ",".join(map(str, job.schedule.cuts))
    dscps = ",".join(map(str, job.table.dscps))
    return mesh.Identity(
        rank=job.rank,
        key=key,
        digest=job.plan.digest(),
        settings=f"DSCPs {dscps}, bands cut at layers {cuts}, order by {job.schedule.order}, "
        f"timeout {network.timeout:g} s, "
        f"{sys.byteorder}-endian, servers {servers_do}",
        slices=slices,
    )
