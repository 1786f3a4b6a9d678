"""Engines of several ranks in one process, on loopback."""

from __future__ import annotations

import itertools
import re
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from queue import Queue

import pytest
import torch

from p3.adopt import socket_inodes
from p3.engine import Job, Network, P3Error, PeerLostError, PlanMismatchError
from p3.ps import ParameterServer, receive_windows
from p3.rendezvous import Endpoint
from p3.schedule import make_schedule
from p3.slicing import Parameter, SlicePlan, make_plan
from p3.sockets import Address
from p3.tensors import adder, bytes_of, dtype_name
from p3.wire.frames import FrameType, Header
from p3_shaper.bands import BandTable, default_table

WORLD = 4
LAYERS = 9
RECEIVED_AT_MOST = 64 << 20
"""What kernels hold at both ends, amply."""
WAIT_S = 30
"""Far beyond what any event takes: a hang fails, a busy machine does not."""

Outcome = int | P3Error


class Meeting:
    """Exchanges objects between the ranks' threads; `alter` changes what a rank says."""

    def __init__(self, world: int) -> None:
        self._barrier = threading.Barrier(world, timeout=WAIT_S)
        self._said: list[object] = [None] * world
        self.alter: Callable[[int, object], object] = lambda _, said: said

    def exchange_of(self, rank: int) -> Callable[[object], list[object]]:
        def exchange(mine: object) -> list[object]:
            self._said[rank] = mine
            self._barrier.wait()
            heard = [self.alter(rank, said) for said in self._said]
            self._barrier.wait()
            return heard

        return exchange


class Rank:
    """A job, its payloads, and what its engine reports."""

    def __init__(self, rank: int, plan: SlicePlan, dtype: torch.dtype = torch.float32) -> None:
        self.outcomes: Queue[Outcome] = Queue()
        self.works = rank < plan.world_size
        self.payloads = [
            torch.zeros(piece.payload_numel, dtype=dtype) for piece in plan.slices if self.works
        ]
        self.job = Job(
            name="test",
            rank=rank,
            plan=plan,
            schedule=make_schedule(plan.layer_bytes(), len(default_table())),
            table=default_table(),
            payloads=[bytes_of(payload) for payload in self.payloads],
            adders={dtype_name(dtype): adder(dtype)},
            on_done=self.outcomes.put,
            on_error=self.outcomes.put,
        )
        self.engine: ParameterServer | None = None

    def iterate(self, iteration: int) -> None:
        """Push every slice, last layer first, and wait for all sums."""
        assert self.engine is not None
        for piece in reversed(self.job.plan.slices):
            self.engine.advance(self.job.schedule.backward_position(iteration, piece.layer))
            self.engine.submit(piece.index, iteration)
        done = {self.outcomes.get(timeout=WAIT_S) for _ in self.payloads}
        assert done == {piece.index for piece in self.job.plan.slices}

    def error(self) -> P3Error:
        """The error that the engine reports; slices may be done before it."""
        while not isinstance(outcome := self.outcomes.get(timeout=WAIT_S), P3Error):
            pass
        return outcome


def plan_of(
    world: int = WORLD,
    numel: int = 60_000,
    dtype: str = "float32",
    servers: Sequence[int] = (),
) -> SlicePlan:
    parameters = [Parameter(f"p{i}", numel + i, dtype, 4, i) for i in range(LAYERS)]
    return make_plan(parameters, world, servers=servers)


def open_all(
    ranks: Sequence[Rank], meeting: Meeting | None = None, **options: object
) -> list[ParameterServer | P3Error]:
    """Open every rank's engine at once; an engine or the error, by rank."""
    meeting = meeting or Meeting(len(ranks))

    def start(rank: Rank) -> ParameterServer | P3Error:
        try:
            rank.engine = ParameterServer(
                rank.job,
                exchange=meeting.exchange_of(rank.job.rank),
                **{"host": "127.0.0.1", **options},  # type: ignore[arg-type]
            )
        except P3Error as error:
            return error
        return rank.engine

    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(start, ranks))


@contextmanager
def running(ranks: Sequence[Rank], **options: object) -> Iterator[list[ParameterServer]]:
    opened = open_all(ranks, **options)  # type: ignore[arg-type]
    engines = [engine for engine in opened if isinstance(engine, ParameterServer)]
    try:
        assert len(engines) == len(ranks), opened
        yield engines
    finally:
        close_all(engines)


def close_all(engines: Sequence[ParameterServer]) -> None:
    with ThreadPoolExecutor(len(engines)) as pool:
        list(pool.map(ParameterServer.close, engines))


def at_once(ranks: Sequence[Rank], iteration: int) -> None:
    with ThreadPoolExecutor(len(ranks)) as pool:
        list(pool.map(lambda rank: rank.iterate(iteration), ranks))


def fill(ranks: Sequence[Rank], seed: int) -> list[torch.Tensor]:
    """Random contributions; the sums in rank order."""
    generator = torch.Generator().manual_seed(seed)
    for rank in ranks:
        for payload in rank.payloads:
            payload.copy_(torch.randn(payload.numel(), generator=generator))
    sums = [payload.clone() for payload in ranks[0].payloads]
    for rank in ranks[1:]:
        for total, addend in zip(sums, rank.payloads, strict=True):
            total.add_(addend)
    return sums


@pytest.mark.native_threads
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("port_buffer", [0, 256_000])
def test_every_rank_gets_the_same_sums_bit_for_bit(host: str, port_buffer: int) -> None:
    ranks = [Rank(rank, plan_of()) for rank in range(WORLD)]
    with running(ranks, host=host, port_buffer=port_buffer) as engines:
        for iteration in range(3):
            sums = fill(ranks, iteration)
            at_once(ranks, iteration)
            for rank in ranks:
                assert all(map(torch.equal, rank.payloads, sums))
        totals = [engine.statistics() for engine in engines]
    assert {total.slices_done for total in totals} == {3 * len(ranks[0].payloads)}
    size = sum(piece.payload_bytes for piece in ranks[0].job.plan.slices)
    assert sum(total.payload_bytes_sent for total in totals) == 3 * 2 * (WORLD - 1) * size


@pytest.mark.parametrize("world", [1, 2])
def test_small_worlds(world: int) -> None:
    ranks = [Rank(rank, plan_of(world, numel=50)) for rank in range(world)]
    with running(ranks):
        sums = fill(ranks, 0)
        at_once(ranks, 0)
        assert all(map(torch.equal, ranks[-1].payloads, sums))


def bands_of(one: Rank, other: Rank) -> int:
    """How many bands two ranks need between them: one to know that the other is there."""
    plan, schedule = one.job.plan, one.job.schedule
    pair = {one.job.rank, other.job.rank}
    if pair in ({0, 1}, {2, 3}) and not pair & set(plan.servers) & {0, 1}:
        return 1
    return len({0} | {schedule.push_band(p.layer) for p in plan.slices if p.server in pair})


@pytest.mark.native_threads
@pytest.mark.parametrize("servers", [(0,), (1, 2), (2, 3)])
def test_ranks_that_only_work_and_ranks_that_only_serve(servers: tuple[int, ...]) -> None:
    plan = plan_of(2, servers=servers)
    assert {piece.server for piece in plan.slices} == set(servers)
    members = [Rank(rank, plan) for rank in range(plan.members)]
    workers = members[:2]
    before = socket_inodes()
    opened = open_all(members)
    engines = [engine for engine in opened if isinstance(engine, ParameterServer)]
    try:
        assert len(engines) == len(members), opened
        # Both ends are in this process, and each direction has its connections.
        pairs = list(itertools.combinations(members, 2))
        assert len(socket_inodes() - before) == 4 * sum(bands_of(*pair) for pair in pairs)
        for iteration in range(3):
            sums = fill(workers, iteration)
            at_once(workers, iteration)
            for rank in workers:
                assert all(map(torch.equal, rank.payloads, sums))
    finally:
        # Servers end by themselves when all workers have, not before.
        close_all(engines[:1])
        if servers == (2, 3):
            assert not any(engine.ended.is_set() for engine in engines[1:])
        close_all(engines[1:2])
        assert all(engine.ended.wait(WAIT_S) for engine in engines)
    assert all(rank.outcomes.empty() for rank in members)


def test_a_server_that_leaves_while_it_is_needed_is_lost() -> None:
    members = [Rank(rank, plan_of(2, servers=(2, 3))) for rank in range(4)]
    with running(members) as engines:
        engines[3].close()
        for rank, engine in zip(members[:2], engines[:2], strict=True):
            for piece in rank.job.plan.slices:
                engine.submit(piece.index, 0)
            error = rank.error()
            assert isinstance(error, PeerLostError)
            assert "rank 3 at 127.0.0.1" in str(error)


def test_slow_ranks_get_what_they_are_owed_after_the_others_have_closed() -> None:
    ranks = [Rank(rank, plan_of()) for rank in range(WORLD)]
    with running(ranks) as engines, ThreadPoolExecutor(WORLD) as pool:

        def work(rank: Rank) -> None:
            rank.iterate(0)
            engines[rank.job.rank].close()

        list(pool.map(work, ranks))
    assert all(rank.outcomes.empty() for rank in ranks)


@pytest.mark.parametrize("odd", [0, 2, 3])
def test_a_rank_with_other_slices_is_refused_everywhere(odd: int) -> None:
    other = plan_of(numel=60_001)
    ranks = [Rank(rank, other if rank == odd else plan_of()) for rank in range(WORLD)]
    errors = open_all(ranks)
    assert [type(error) for error in errors] == [PlanMismatchError] * WORLD
    assert all(re.search(rf"rank {odd}\b", str(error)) for error in errors)


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        (default_table(6), "uses 6 bands"),
        (BandTable((41, 39, 23, 17, 15, 9, 12)), "DSCPs 41,39,23,17,15,9,12"),
    ],
)
def test_a_rank_with_other_bands_is_refused_everywhere(table: BandTable, reason: str) -> None:
    ranks = [Rank(rank, plan_of()) for rank in range(WORLD)]
    schedule = make_schedule(ranks[1].job.plan.layer_bytes(), len(table))
    ranks[1].job = replace(ranks[1].job, table=table, schedule=schedule)
    errors = open_all(ranks)
    assert [type(error) for error in errors] == [PlanMismatchError] * WORLD
    assert any(reason in str(error) for error in errors)


def test_a_rank_with_a_wrong_token_is_refused_everywhere() -> None:
    ranks = [Rank(rank, plan_of()) for rank in range(WORLD)]
    meeting = Meeting(WORLD)

    def wrong_for_two(rank: int, said: object) -> object:
        wrong = rank == 2 and isinstance(said, Endpoint)
        return replace(said, token=b"x" * 16) if wrong else said  # type: ignore[type-var]

    meeting.alter = wrong_for_two
    errors = open_all(ranks, meeting)
    assert all("does not prove the job's token" in str(error) for error in errors), errors


def test_a_rank_that_does_not_come_is_named() -> None:
    ranks = [Rank(rank, plan_of(3)) for rank in range(3)]
    meeting = Meeting(3)
    nowhere = socket.create_server(("127.0.0.1", 0))
    with nowhere, ThreadPoolExecutor(1) as pool:
        ports = (nowhere.getsockname()[1],) * ranks[0].job.schedule.bands

        def absent() -> None:
            exchange = meeting.exchange_of(2)
            exchange(Endpoint("127.0.0.1", ports, b"t" * 16))

        away = pool.submit(absent)
        errors = open_all(ranks[:2], meeting, network=Network(timeout=1))
        away.result()
    assert all(isinstance(error, PeerLostError) for error in errors)
    assert all("[2]" in str(error) for error in errors)


def flood(sock: socket.socket) -> int:
    """Send a HELLO of 10 GB; how many bytes went before the other end refused more."""
    sock.settimeout(WAIT_S)
    sent = 0
    try:
        sock.sendall(Header(FrameType.HELLO, length=10_000_000_000).encode())
        while sent < 10_000_000_000:
            sent += sock.send(bytes(1 << 20))
    except ConnectionError:
        pass
    return sent


def test_strangers_at_the_port_are_ignored() -> None:
    ranks = [Rank(rank, plan_of(2)) for rank in range(2)]
    meeting = Meeting(2)
    strangers: list[socket.socket] = []
    floods: list[Future[int]] = []

    def knock(rank: int, said: object) -> object:
        if rank == 1 and isinstance(said, Endpoint) and not strangers:
            for text in (b"GET / HTTP/1.1\r\n\r\n" + bytes(24), b"\x16\x03\x01", b""):
                strangers.append(socket.create_connection((said.host, said.ports[0])))
                strangers[-1].sendall(text)
            strangers.pop().close()
            strangers.append(socket.create_connection((said.host, said.ports[0])))
            floods.append(pool.submit(flood, strangers[-1]))
        return said

    meeting.alter = knock
    with ThreadPoolExecutor(1) as pool:
        opened = open_all(ranks, meeting)
    assert floods[0].result() < RECEIVED_AT_MOST
    engines = [engine for engine in opened if isinstance(engine, ParameterServer)]
    try:
        assert len(engines) == 2, opened
        at_once(ranks, 0)
    finally:
        close_all(engines)
        for stranger in strangers:
            stranger.close()


def test_a_port_in_use_is_an_error_on_every_rank() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ranks = [Rank(rank, plan_of(2)) for rank in range(2)]
        errors = open_all(ranks, port=taken.getsockname()[1])
    assert all(isinstance(error, P3Error) for error in errors)
    assert all("choose a free port" in str(error) for error in errors)


def test_a_rank_that_leaves_while_it_is_needed_is_lost_on_every_other() -> None:
    ranks = [Rank(rank, plan_of()) for rank in range(WORLD)]
    with running(ranks) as engines:
        for rank in ranks[:3]:
            for piece in rank.job.plan.slices:
                engines[rank.job.rank].submit(piece.index, 0)
        engines[3].close()
        for rank in ranks[:3]:
            error = rank.error()
            assert isinstance(error, PeerLostError)
            assert "rank 3 at 127.0.0.1" in str(error)


def test_an_error_reaches_ranks_that_cannot_see_its_cause() -> None:
    """Rank 1 contributes to a slice twice; only the slice's server can know."""
    ranks = [Rank(rank, plan_of()) for rank in range(WORLD)]
    index = next(piece.index for piece in ranks[0].job.plan.slices if piece.server == 2)
    with running(ranks) as engines:
        engines[1].submit(index, 0)
        engines[1].submit(index, 0)
        for rank in ranks:
            assert f"rank 1 contributes to slice {index} twice" in str(rank.error())
            assert rank.outcomes.empty()
        engines[0].submit(index, 0)


def test_payloads_of_a_wrong_iteration_are_refused() -> None:
    ranks = [Rank(rank, plan_of(2)) for rank in range(2)]
    index = next(piece.index for piece in ranks[0].job.plan.slices if piece.server == 0)
    with running(ranks) as engines:
        engines[0].submit(index, 4)
        engines[1].submit(index, 5)
        for rank in ranks:
            assert "in iteration 5, which is in 4" in str(rank.error())


def test_closing_twice_and_use_after_it_are_harmless() -> None:
    ranks = [Rank(rank, plan_of(2)) for rank in range(2)]
    with running(ranks) as engines:
        at_once(ranks, 0)
    for engine in engines:
        engine.close()
        engine.submit(0, 1)
        engine.advance(7)
    assert all(rank.outcomes.empty() for rank in ranks)


def test_what_may_be_under_way_to_a_node_fits_its_port() -> None:
    def windows(hosts: str, rank: int, servers: Sequence[int] = (), size: int = 240_000) -> object:
        workers = sum(member not in servers or member < 2 for member in range(len(hosts)))
        plan = make_plan([], workers if servers else len(hosts), servers=servers)
        return receive_windows(size, list(hosts), rank, plan.sends)

    assert windows("abcd", 1) == dict.fromkeys((0, 2, 3), 40_000)
    # Two ranks a node: each of the two here hears two ranks there.
    assert windows("aabb", 0) == dict.fromkeys((2, 3), 30_000)
    assert windows("aa", 0) == {}
    assert windows("a", 0) == {}
    assert windows("ab", 0, size=0) == {}
    # Two workers and two servers: a node hears those of the other kind alone.
    assert windows("abcd", 0, servers=(2, 3)) == dict.fromkeys((1, 2, 3), 60_000)
    assert windows("abcd", 3, servers=(2, 3)) == dict.fromkeys((0, 1, 2), 60_000)


def test_addresses_show_ipv6_in_brackets() -> None:
    assert str(Address("::1", 80)) == "[::1]:80"
