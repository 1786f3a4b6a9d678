"""The engine `ps` with servers that update: a worker pushes gradients and gets parameters back."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial

from p3.aggregator import Sum
from p3.commits import Commit, CommitError, SettingsError
from p3.commits import decode as decode_commit
from p3.commits import encode as encode_commit
from p3.engine import ANY_NETWORK, Job, Network, P3Error, PlanMismatchError
from p3.ps import PORT_BUFFER, ParameterServer
from p3.rendezvous import Exchange
from p3.run_states import RunState, StateError
from p3.run_states import decode as decode_states
from p3.run_states import encode as encode_states
from p3.server_update import Recipe, most_state_bytes
from p3.slicing import Slice
from p3.updates import Updates
from p3.wire import ON_REQUEST, ErrorCode, FrameType, NoteReceived, RemoteError


class UpdatingServer(ParameterServer):
    """As ParameterServer, but each server applies an optimizer to its sums, and sends parameters.

    `optimizer` is this rank's part of it; see there who may call what, and when.
    """

    updates_kind: type[Updates] = Updates

    def __init__(
        self,
        job: Job,
        recipe: Recipe,
        *,
        exchange: Exchange,
        network: Network = ANY_NETWORK,
        host: str | None = None,
        port_buffer: int = PORT_BUFFER,
        pulls: bool = False,
    ) -> None:
        self._updates = self.updates_kind(job.plan, job.rank, recipe)
        self.optimizer = self._updates.optimizer
        self._collecting: _Collecting | None = None
        self._updating = False
        self._finished: set[int] = set()
        self._all_finished = threading.Event()
        self._workers = frozenset(range(job.plan.world_size))
        super().__init__(
            job,
            exchange=exchange,
            network=network,
            host=host,
            port_buffer=port_buffer,
            pulls=pulls,
            servers_do=f"apply {recipe.optimizer}",
            most_state_bytes=[most_state_bytes(piece) for piece in job.plan.slices],
        )

    def commit(self, iteration: int, commit: Commit) -> None:
        """This worker's step() of `iteration`, whose slices are all handed over."""
        self._loop.call(partial(self._commit, iteration, commit))

    def collect(self) -> list[RunState]:
        """The optimizer's state of all slices, from their servers; waits for them.

        It is that after this worker's last commit, whatever the others do meanwhile. P3Error when
        the engine has failed.
        """
        collecting = _Collecting({piece.index for piece in self._slices})
        self._loop.call(partial(self._collect, collecting))
        return collecting.result()

    def load(self, index: int, states: Sequence[RunState]) -> None:
        """Give slice `index`'s server parameters and state, if that is for this worker to do.

        Each does so for itself where it serves; worker 0 for servers that do not work.
        """
        server = self._slices[index].server
        if server == self._job.rank:
            self._loop.call(partial(self.optimizer.load, index, states))
        elif server >= self._job.plan.world_size and self._job.rank == 0:
            self._loop.call(partial(self._send_state, server, index, encode_states(states)))

    def finish(self) -> None:
        """No more commits; waits until all workers say so, or the engine has failed.

        Until then they may want the state that is here. A worker that gives up does without.
        """
        self._loop.call(self._finish_commits)
        self._all_finished.wait()

    # In the loop's thread

    def _finish_commits(self) -> None:
        if self._transport.failure is not None:
            return
        for peer in self._transport.peers:
            if peer not in self._gone:
                self._transport.note(peer, FrameType.DONE, 0, 0, b"")
        self._has_finished(self._job.rank)

    def _has_finished(self, worker: int) -> None:
        self._finished.add(worker)
        self._check_gone()
        if self._done_contributing() >= self._workers:
            self._all_finished.set()

    def _done_contributing(self) -> set[int]:
        return self._gone | self._finished

    def _commit(self, iteration: int, commit: Commit) -> None:
        if self._transport.failure is not None:
            return
        body = encode_commit(commit)
        for server in self._job.plan.servers:
            if server != self._job.rank:
                self._transport.note(server, FrameType.COMMIT, 0, iteration, body)
        if self._job.rank in self._job.plan.servers:
            try:
                self._stepped(self._job.rank, iteration, commit)
            except SettingsError as error:
                self._transport.fail(PlanMismatchError(str(error)), ErrorCode.PLAN)

    def _stepped(self, worker: int, iteration: int, commit: Commit) -> None:
        self._updates.stepped(worker, iteration, commit)
        self._update_soon()
        self._check_gone()

    def _summed(self, total: Sum) -> list[Sum]:
        self._updates.summed(total)
        self._update_soon()
        return []

    def _update_soon(self) -> None:
        if not self._updating:
            self._updating = True
            self._loop.call(self._update)

    def _update(self) -> None:
        """One slice at a time: between two, sockets get their turn, and more urgent slices."""
        self._updating = False
        if self._transport.failure is None and (total := self._updates.next()) is not None:
            self._send_out(total)
            self._update_soon()

    def _waits_for(self, worker: int) -> str:
        iteration = self._updates.waits_for(worker)
        slices = super()._waits_for(worker)
        return slices if iteration is None else f"the step() of iteration {iteration}"

    def _collect(self, collecting: _Collecting) -> None:
        self._collecting = collecting
        if self._transport.failure is not None:
            collecting.fail(self._transport.failure)
            return
        for piece in self.optimizer.slices:
            collecting.add(piece.index, self.optimizer.dump(piece.index))
        for server in {piece.server for piece in self._slices} - {self._job.rank}:
            self._transport.note(server, FrameType.FETCH, 0, 0, b"")

    def _send_state(self, peer: int, index: int, body: bytes) -> None:
        self._transport.note(peer, FrameType.STATE, index, 0, body)

    def _ended(self, crashed: bool) -> None:
        super()._ended(crashed)
        if self._collecting is not None:
            self._collecting.fail(P3Error("the engine is closed"))
        self._all_finished.set()

    # What the transport tells

    def noted(self, peer: int, event: NoteReceived) -> None:
        """See `transport.User`."""
        if event.type in ON_REQUEST:
            super().noted(peer, event)
            return
        if not self._may_note(peer, event.type):
            raise RemoteError(ErrorCode.PROTOCOL, f"{event.type.name} from rank {peer}")
        try:
            if event.type is FrameType.COMMIT:
                self._stepped(peer, event.iteration, decode_commit(event.body))
            elif event.type is FrameType.DONE:
                self._has_finished(peer)
            elif event.type is FrameType.FETCH:
                for piece in self.optimizer.slices:
                    state = encode_states(self.optimizer.dump(piece.index))
                    self._send_state(peer, piece.index, state)
            elif self._works:
                self._collected(peer, event.index, decode_states(event.body))
            else:
                self.optimizer.load(event.index, decode_states(event.body))
        except SettingsError as error:
            raise RemoteError(ErrorCode.PLAN, str(error)) from error
        except (CommitError, StateError) as error:
            raise RemoteError(ErrorCode.PROTOCOL, str(error)) from error

    def left(self, peer: int) -> None:
        """See `transport.User`."""
        super().left(peer)
        self._has_finished(peer)
        if self._collecting is not None and self._collecting.misses_of(peer, self._slices):
            self._owed(peer, "the optimizer's state that is there")

    def failed(self, error: P3Error) -> None:
        """See `transport.User`."""
        if self._collecting is not None:
            self._collecting.fail(error)
        self._all_finished.set()
        super().failed(error)

    def _may_note(self, peer: int, kind: FrameType) -> bool:
        servers = self._job.plan.servers
        if kind is FrameType.STATE:
            return peer in servers if self._works else peer == 0
        return peer in self._workers and (kind is FrameType.DONE or self._job.rank in servers)

    def _collected(self, peer: int, index: int, states: list[RunState]) -> None:
        if self._collecting is None or self._slices[index].server != peer:
            raise StateError(f"the state of slice {index}, which was not asked for")
        self._collecting.add(index, states)


class _Collecting:
    """The states of slices on their way to one who waits for all of them."""

    def __init__(self, missing: set[int]) -> None:
        self._missing = missing
        self._states: list[RunState] = []
        self._future: Future[list[RunState]] = Future()

    def add(self, index: int, states: Sequence[RunState]) -> None:
        """StateError for a slice that was there before, or is not wanted."""
        if index not in self._missing:
            raise StateError(f"the state of slice {index}, which was not asked for")
        self._missing.remove(index)
        self._states += states
        if not self._missing:
            self._future.set_result(self._states)

    def misses_of(self, server: int, slices: Sequence[Slice]) -> bool:
        """Whether `server` still owes some."""
        return any(slices[index].server == server for index in self._missing)

    def fail(self, error: P3Error) -> None:
        """Unless all is there."""
        if not self._future.done():
            self._future.set_exception(error)

    def result(self) -> list[RunState]:
        """Waits. Raises what it failed with."""
        return self._future.result()
