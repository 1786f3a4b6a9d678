"""Servers on ranks of their own: how they and the workers find together, and what they run.

The workers' process group does not hold them, so that every collective of a training script, its
own and torch's, is among workers alone. They meet in the store that the workers' group was made
with (torch.distributed's TCPStore at MASTER_ADDR:MASTER_PORT): worker 0 leaves there what is to
be served, and all leave there where they listen.
"""

from __future__ import annotations

import atexit
import base64
import binascii
import contextlib
import os
import pickle
import queue
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist

from p3 import pickles
from p3.default_group import default_store, exchange_over_default_group
from p3.engine import Job, Network, P3Error, PeerLostError, PlanMismatchError
from p3.ps import ParameterServer
from p3.rendezvous import Exchange
from p3.schedule import Schedule
from p3.server_update import Recipe
from p3.slicing import SlicePlan
from p3.tensors import adder, dtype_named
from p3.updating import UpdatingServer
from p3_agent import client
from p3_shaper.bands import BandTable

POLL_S = 0.5
END_S = 3.0
"""How long worker 0 waits at its end for servers to hear of it, before the store goes."""

_ENDED = ""


@dataclass(frozen=True, slots=True)
class Served:
    """What a server needs to know of a job."""

    name: str
    plan: SlicePlan
    schedule: Schedule
    table: BandTable
    port_buffer: int
    timeout: float
    recipe: Recipe | None


class Meeting:
    """The store, as a member of the job sees it. Raises P3Error when it cannot be reached."""

    def __init__(self, timeout: float) -> None:
        try:
            host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        except (KeyError, ValueError) as error:
            raise P3Error(
                f"{error} in the environment: servers of their own meet the workers at "
                "MASTER_ADDR and MASTER_PORT; start both under torchrun"
            ) from error
        # Under some releases of torch a restart by torchrun keeps the store.
        self._prefix = f"p3/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
        self._timeout = timeout
        try:
            self._store = dist.TCPStore(  # type: ignore[attr-defined]
                host,
                port,
                is_master=False,
                wait_for_workers=False,
                timeout=timedelta(seconds=timeout),
            )
        except dist.DistError as error:
            raise PeerLostError(f"no worker 0 answers at {host}:{port}: {error}") from error

    def publish(self, served: Served, store: object) -> None:
        """Tell the servers of a job; at this process's end, that none will come any more.

        `store` is the workers' own, which this process may hold: it is kept until then.
        """
        self._append(_text_of(served))
        apart = [rank for rank in served.plan.servers if rank >= served.plan.world_size]
        atexit.register(self._end, apart, store)

    def find(self, rank: int, number: int) -> Served | None:
        """For server `rank`, job `number`; None if there is none yet. EOFError at the end."""
        key = f"{self._prefix}/job/{number}"
        try:
            if not self._store.check([key]):
                return None
            text = self._store.get(key)
        except dist.DistError as error:  # worker 0's process held the store
            raise EOFError from error
        if text == _ENDED.encode():
            self._store.set(f"{self._prefix}/ended/{rank}", "")
            raise EOFError
        served = _object_of(text)
        assert isinstance(served, Served)
        return served

    def exchange(self, job: Job, mine: object, turn: int) -> list[object]:
        """Every member's object of that turn, in rank order."""
        place = f"{self._prefix}/{job.name}/{turn}"
        rank = job.rank
        try:
            self._store.set(f"{place}/{job.rank}", _text_of(mine))
            everyone: list[object] = []
            for rank in range(job.plan.members):
                everyone.append(_object_of(self._store.get(f"{place}/{rank}")))
        except dist.DistError as error:
            role = "works" if rank < job.plan.world_size else "serves: p3.pytorch.serve()"
            raise PeerLostError(
                f"rank {job.rank} hears nothing of rank {rank}, which {role}, within "
                f"{self._timeout:g} s: {error}"
            ) from error
        return everyone

    def _append(self, text: str) -> None:
        number = self._store.add(f"{self._prefix}/jobs", 1) - 1
        self._store.set(f"{self._prefix}/job/{number}", text)

    def _end(self, apart: Sequence[int], _: object) -> None:
        heard = [f"{self._prefix}/ended/{rank}" for rank in apart]
        with contextlib.suppress(dist.DistError):  # it does not matter who is gone already
            self._append(_ENDED)
            self._store.wait(heard, timedelta(seconds=END_S))


class _Turns:
    """An `Exchange` in a meeting."""

    def __init__(self, meeting: Meeting, job: Job) -> None:
        self._meeting = meeting
        self._job = job
        self._turn = 0

    def __call__(self, mine: object) -> list[object]:
        self._turn += 1
        return self._meeting.exchange(self._job, mine, self._turn)


def open_summing(job: Job, *, port_buffer: int, network: Network) -> ParameterServer:
    """The engine of a worker, whoever its servers are."""
    exchange = _meet(job, port_buffer, network.timeout, None)
    return ParameterServer(job, port_buffer=port_buffer, exchange=exchange, network=network)


def open_updating(
    job: Job, recipe: Recipe, *, port_buffer: int, network: Network
) -> UpdatingServer:
    """The same where the servers update."""
    exchange = _meet(job, port_buffer, network.timeout, recipe)
    return UpdatingServer(job, recipe, port_buffer=port_buffer, exchange=exchange, network=network)


def _meet(job: Job, port_buffer: int, timeout: float, recipe: Recipe | None) -> Exchange:
    if job.plan.members == job.plan.world_size:
        return exchange_over_default_group
    meeting = Meeting(timeout)
    if job.rank == 0:
        served = Served(job.name, job.plan, job.schedule, job.table, port_buffer, timeout, recipe)
        meeting.publish(served, default_store())
    return _Turns(meeting, job)


def check_servers(servers: tuple[int, ...], world_size: int) -> None:
    """P3Error unless these can be the servers of that many workers."""
    apart = sorted(rank for rank in servers if rank >= world_size)
    if len(set(servers)) < len(servers) or min(servers, default=0) < 0:
        raise P3Error(f"servers={list(servers)}: name each rank once, from 0 on")
    if apart != list(range(world_size, world_size + len(apart))):
        raise P3Error(
            f"servers={list(servers)}: with {world_size} workers the servers that do not work are "
            f"ranks {world_size}, {world_size + 1} … without a gap"
        )


def serve(
    rank: int | None = None, *, timeout: float = Network.timeout, interface: str | None = None
) -> None:
    """Serve slices on a rank that does not train, until the workers end.

    Call it in place of training, without init_process_group, on every rank of distribute()'s
    `servers=` that is no worker. `rank` is $RANK if not given; MASTER_ADDR and MASTER_PORT are
    those of the workers, as under one torchrun. `timeout`: seconds for the workers to come; from
    then on theirs counts. `interface` is this node's, as in `distribute`.
    Raises P3Error when training fails.
    """
    if rank is None:
        rank = _rank_of_environment()
    meeting = Meeting(timeout)
    errors: queue.SimpleQueue[P3Error] = queue.SimpleQueue()
    engines: list[ParameterServer] = []
    number = 0
    more = True
    try:
        while more or engines:
            with contextlib.suppress(queue.Empty):
                raise errors.get(timeout=POLL_S)
            engines = [engine for engine in engines if not engine.ended.is_set()]
            try:
                served = meeting.find(rank, number) if more else None
            except EOFError:
                more, served = False, None
            if served is not None:
                number += 1
                if rank in served.plan.servers:
                    network = Network(served.timeout, interface)
                    engines.append(_open(served, rank, network, meeting, errors))
    finally:
        for engine in engines:
            engine.close()


def _text_of(thing: object) -> str:
    return base64.b64encode(pickle.dumps(thing)).decode()


def _object_of(text: bytes) -> object:
    try:
        return pickles.load(base64.b64decode(text, validate=True))
    except binascii.Error as error:
        raise P3Error(f"the workers' store holds what no rank left there: {error}") from error


def _open(
    served: Served,
    rank: int,
    network: Network,
    meeting: Meeting,
    errors: queue.SimpleQueue[P3Error],
) -> ParameterServer:
    bands = client.bands()
    if bands is not None and bands != served.table:
        raise PlanMismatchError(
            f"rank {rank}, a server, has bands with DSCPs {bands.dscps}, the workers "
            f"{served.table.dscps}: give every node's p3-agent the same bands"
        )
    job = Job(
        name=served.name,
        rank=rank,
        plan=served.plan,
        schedule=served.schedule,
        table=served.table,
        payloads=(),
        adders={piece.dtype: adder(dtype_named(piece.dtype)) for piece in served.plan.slices},
        on_done=lambda _: None,
        on_error=errors.put,
    )
    turns, port_buffer = _Turns(meeting, job), served.port_buffer
    if served.recipe is None:
        return ParameterServer(job, port_buffer=port_buffer, exchange=turns, network=network)
    return UpdatingServer(
        job, served.recipe, port_buffer=port_buffer, exchange=turns, network=network
    )


def _rank_of_environment() -> int:
    try:
        return int(os.environ["RANK"])
    except (KeyError, ValueError) as error:
        raise P3Error("serve() needs its rank: start it under torchrun, or give rank=") from error
