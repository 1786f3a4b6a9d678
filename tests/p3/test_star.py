"""Ranks meet at MASTER_PORT without a framework."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from support.clusters import MakeCluster
from support.ranks import free_port

from p3 import pickles
from p3.engine import P3Error, PeerLostError
from p3.star import RETRY_S, Place, Star, place_of
from p3.star_door import PROOF_BYTES, Greeting
from p3_shaper.bands import default_table
from p3_shaper.namespace import enter

WORLD = 3
WAIT_S = 20.0
RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


@pytest.fixture
def port() -> int:
    return free_port()


def in_all(
    port: int, act: Callable[[Star, int], object], come: threading.Event | None = None
) -> list[object]:
    """What `act` returns on every rank, or the P3Error that ended it.

    Ranks other than 0 wait for `come`.
    """

    def rank_of(rank: int) -> object:
        if come is not None and rank:
            come.wait(WAIT_S)
        try:
            with closing(Star(Place(rank, WORLD, "127.0.0.1", port), timeout=WAIT_S)) as star:
                return act(star, rank)
        except P3Error as error:
            return error

    with ThreadPoolExecutor(WORLD) as pool:
        return list(pool.map(rank_of, range(WORLD)))


def test_everyone_hears_everyone_in_rank_order(port: int) -> None:
    found = in_all(port, lambda star, rank: [star.exchange((rank, default_table())) for _ in "ab"])
    assert found == [[[(rank, default_table()) for rank in range(WORLD)]] * 2] * WORLD


def test_all_get_the_bytes_of_rank_0(port: int) -> None:
    def broadcast(star: Star, rank: int) -> bytes:
        memory = bytearray([rank]) * 3_000_000
        star.broadcast(memoryview(memory))
        return bytes(memory[-2:])

    assert in_all(port, broadcast) == [b"\0\0"] * WORLD


def test_a_slow_link_may_need_longer_than_the_timeout_for_one_array(port: int) -> None:
    size, timeout = 24 << 20, 0.5

    def send() -> None:
        with closing(Star(Place(0, 2, "127.0.0.1", port), timeout=timeout)) as zero:
            zero.broadcast(memoryview(bytes(size)))

    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(send)
        with closing(Star(Place(1, 2, "127.0.0.1", port), timeout=timeout)) as one:
            (sock,) = one._peers.values()
            left, begun = size, time.monotonic()
            while left and (content := sock.recv(1 << 18)):
                left -= len(content)
                time.sleep(0.02)
        sent.result()
    assert left == 0
    assert time.monotonic() - begun > timeout


def test_strangers_are_sent_away(port: int) -> None:
    come = threading.Event()
    greeting = Greeting.of(1, WORLD).encode()
    says = [
        b"",
        b"GET / HTTP/1.1\r\n" * 10_000,
        greeting[:-1],
        greeting,
        greeting + bytes(PROOF_BYTES),
        replace(Greeting.of(1, WORLD), version=1).encode(),
    ]
    with ThreadPoolExecutor(1) as pool, ExitStack() as exits:
        ranks = pool.submit(in_all, port, lambda star, rank: star.exchange(rank), come=come)
        for text in says:
            stranger = exits.enter_context(closing(connected(port)))
            with suppress(ConnectionError):  # it may be known by its first bytes
                stranger.sendall(text)
        come.set()
        assert ranks.result() == [list(range(WORLD))] * WORLD


def meet(places: Sequence[Place], keys: Mapping[int, bytes] | None = None) -> list[str]:
    """What each raises."""

    def rank_of(place: Place) -> str:
        try:
            Star(place, timeout=1, key=(keys or {}).get(place.rank)).close()
        except P3Error as error:
            return f"{type(error).__name__}: {error}"
        return ""

    with ThreadPoolExecutor(len(places)) as pool:
        return list(pool.map(rank_of, places))


def test_a_rank_with_another_token_does_not_come_in(port: int) -> None:
    zero, one, two = meet(
        [Place(rank, WORLD, "127.0.0.1", port) for rank in range(WORLD)], {2: b"x"}
    )
    assert "do not prove the same P3_TOKEN" in two
    assert zero == one
    assert "PeerLostError: rank 0 still waits for ranks [2]" in zero
    assert "turned away: it does not prove P3_TOKEN" in zero


@pytest.mark.parametrize(
    ("odd", "reason"),
    [
        (Place(2, 4, "127.0.0.1", 0), "rank 2 has WORLD_SIZE=4, rank 0 3"),
        (Place(1, 3, "127.0.0.1", 0), "two processes say that they are rank 1"),
    ],
)
def test_ranks_that_cannot_be_end_all(port: int, odd: Place, reason: str) -> None:
    places = [Place(0, WORLD, "127.0.0.1", port), Place(1, WORLD, "127.0.0.1", port)]
    assert all(reason in said for said in meet([*places, replace(odd, port=port)]))


def connected(port: int) -> socket.socket:
    """A connection to rank 0, which may be yet to listen."""
    until = time.monotonic() + WAIT_S
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
        except ConnectionRefusedError:
            if time.monotonic() > until:
                raise
            time.sleep(RETRY_S)


def test_a_port_that_is_taken_is_told_at_once(port: int) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        zero, *others = meet([Place(rank, WORLD, "127.0.0.1", port) for rank in range(WORLD)])
    assert f"rank 0 cannot listen at MASTER_ADDR 127.0.0.1, MASTER_PORT {port}" in zero
    assert all("PeerLostError: rank" in said for said in others)


def test_a_rank_that_comes_first_leaves_rank_0_its_port(make_cluster: MakeCluster) -> None:
    """The kernel may choose that very port for a connection to it: TCP then meets itself."""
    cluster = make_cluster(1)
    place = Place(1, 2, cluster.nodes[0].address, 45678)

    def come_first() -> None:
        enter(cluster.nodes[0].name)
        RANGE.write_text(f"{place.port} {place.port + 1}")
        with pytest.raises(PeerLostError, match="rank 1 finds no rank 0"):
            Star(place, timeout=0.2)
        socket.create_server((place.host, place.port)).close()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(come_first).result()


def test_only_p3s_own_types_are_unpickled(port: int) -> None:
    def send_a_foreign_type(star: Star, rank: int) -> object:
        return star.exchange(socket.AF_INET if rank == 1 else rank)

    errors = in_all(port, send_a_foreign_type)
    assert "socket.AddressFamily is none of p3's types" in str(errors[0])
    assert all(isinstance(error, P3Error) for error in errors)


@pytest.mark.parametrize("name", ["os.getpid", "struct.unpack", "P3Error.__init__", "place_of"])
def test_a_name_that_leads_out_of_p3s_types_is_refused(name: str) -> None:
    reduced = b"\x80\x04\x8c\x07p3.star\x8c" + bytes([len(name)]) + name.encode() + b"\x93."
    with pytest.raises(P3Error, match=f"p3.star.{name} is none of p3's types"):
        pickles.load(reduced)


def test_a_rank_that_ends_is_named(port: int) -> None:
    def leave(star: Star, rank: int) -> object:
        return None if rank == 2 else star.exchange(rank)

    zero, one, _ = in_all(port, leave)
    assert isinstance(zero, PeerLostError)
    assert "rank 0: rank 2 is lost at the start" in str(zero)
    assert isinstance(one, PeerLostError)
    assert str(one) == str(zero)


def test_a_rank_that_never_comes_is_named(port: int) -> None:
    with pytest.raises(PeerLostError, match=r"still waits for ranks \[1\]"):
        Star(Place(0, 2, "127.0.0.1", port), timeout=0.2)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"RANK": ""}, "invalid literal"),
        ({"RANK": "3"}, "RANK=3, WORLD_SIZE=3"),
        ({"MASTER_PORT": "70000"}, "a port is 1 to 65535"),
    ],
)
def test_an_environment_that_makes_no_sense_is_refused(change: dict[str, str], says: str) -> None:
    sound = {"RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    assert place_of(sound) == Place(0, 3, "127.0.0.1", 29500)
    with pytest.raises(P3Error, match=says):
        place_of({**sound, **change})
    with pytest.raises(P3Error, match="'RANK' in the environment"):
        place_of({key: value for key, value in sound.items() if key != "RANK"})
