"""The control socket under very many clients, and under some that take all they can."""

import asyncio
import json
import os
import resource
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, suppress

import pytest
from agent.inside import daemon_of
from agent.running import Place, settled

from p3_agent import client
from p3_agent.control import ControlServer, listening
from p3_agent.messages import MAX_REPLY
from p3_agent.peers import Limits, Seats

CLIENTS = 1000
STATUS = b'{"type":"status"}'
HELLO = b'{"type":"hello"}'


@pytest.fixture
def _many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(4096, hard)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def connect(where: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(60)
    connection.connect(where)
    return connection


def flood(connection: socket.socket, request: bytes) -> int:
    """Ask until nothing more can be asked, and read no reply; how often that was."""
    connection.setblocking(False)
    sent = 0
    with suppress(BlockingIOError):
        while True:
            connection.send(request)
            sent += 1
    return sent


@pytest.mark.usefixtures("_many_files")
def test_a_thousand_clients_are_served_while_the_tree_is_mended(here: Place) -> None:
    where = str(here.socket)
    with here.running("--rate", "200mbit") as agent, ExitStack() as stack:
        assert client.hello(where)
        before = agent.descriptors()
        clients = [stack.enter_context(connect(where)) for _ in range(CLIENTS)]
        askers, rest = clients[:600], clients[600:]  # 200 more stay silent to the end
        for connection in rest[:100]:
            connection.send(STATUS[:-3])
        for connection in rest[100:200]:
            flood(connection, STATUS)
        here.tc("qdisc del dev eth0 root")
        agent.await_line("repaired")
        for connection in askers:
            connection.send(STATUS)
        answers = [json.loads(connection.recv(MAX_REPLY)) for connection in askers]
        assert {answer["state"] for answer in answers} == {"ok"}
        assert {answer["drift"]["repairs"] for answer in answers} == {1}
        for connection in rest[:100]:
            assert json.loads(connection.recv(MAX_REPLY))["code"] == "malformed"
        assert agent.descriptors() >= before + CLIENTS - 100  # those that flood may be gone
        stack.close()
        assert settled(agent, where, before)
        assert agent.stop() == 0


@pytest.mark.parametrize(("files", "room"), [(84, 20), (50, 1)])
def test_one_client_more_than_there_is_room_for_is_told_so(
    here: Place, files: int, room: int
) -> None:
    where = str(here.socket)
    limit = ("prlimit", f"--nofile={files}:{files}")
    with here.running("--rate", "200mbit", through=limit) as agent, ExitStack() as stack:
        agent.await_line(f"leaves room for {room} clients")
        assert client.hello(where)
        before = agent.descriptors()
        for _ in range(room):
            held = stack.enter_context(connect(where))
            held.send(HELLO)
            assert json.loads(held.recv(MAX_REPLY))["type"] == "welcome"
        with pytest.raises(client.ControlError, match=f"{room} clients are connected") as caught:
            client.bands(where)
        assert caught.value.code == "busy"
        stack.close()
        assert settled(agent, where, before)
        assert agent.stop() == 0


NOBODY = 65534


def test_no_user_takes_every_seat_and_root_gets_in() -> None:
    seats = Seats(Limits(clients=6, per_user=3, kept_for_root=2))
    for _ in range(3):
        assert seats.refusal(NOBODY) is None
        seats.take(NOBODY)
    assert "uid 65534 has 3 connections already" in str(seats.refusal(NOBODY))
    assert seats.refusal(1) is None
    seats.take(1)
    assert "4 clients are connected already" in str(seats.refusal(1))
    for _ in range(2):
        assert seats.refusal(0) is None
        seats.take(0)
    assert seats.refusal(0)
    seats.leave(NOBODY)
    assert seats.refusal(0) is None
    assert seats.refusal(NOBODY)


@asynccontextmanager
async def served(here: Place, limits: Limits) -> AsyncIterator[str]:
    """The name of a socket that a server in this process serves with other limits."""
    async with daemon_of(here) as daemon:
        with listening(here.socket) as listener:
            async with asyncio.TaskGroup() as group:
                task = group.create_task(ControlServer(listener, daemon, limits).serve())
                yield str(here.socket)
                task.cancel()


async def ask(connection: socket.socket, data: bytes) -> bytes:
    connection.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(connection, data)
    return await loop.sock_recv(connection, MAX_REPLY)


def test_a_silent_client_is_let_go_unless_it_trains(here: Place) -> None:
    async def scene() -> None:
        async with served(here, Limits(idle_s=1.0)) as where:
            with connect(where) as trains, connect(where) as greets, connect(where) as silent:
                assert b"done" in await ask(trains, b'{"type":"job","name":"vgg"}')
                assert b"welcome" in await ask(greets, HELLO)
                silent.setblocking(False)
                loop = asyncio.get_running_loop()
                for quiet in (greets, silent):
                    assert await loop.sock_recv(quiet, MAX_REPLY) == b""
                assert b"vgg" in await ask(trains, STATUS)

    asyncio.run(scene())


def test_a_client_that_reads_no_replies_is_let_go(here: Place) -> None:
    async def scene() -> None:
        async with served(here, Limits(send_s=0.1)) as where:
            with connect(where) as greedy, connect(where) as other:
                greedy.setblocking(False)
                loop = asyncio.get_running_loop()
                with pytest.raises((BrokenPipeError, ConnectionResetError)):
                    while True:
                        await loop.sock_sendall(greedy, STATUS)
                assert b"welcome" in await ask(other, HELLO)

    asyncio.run(scene())


GREEDY = """
import os, sys
from p3_agent import client
os.setgid(65534)
os.setuid(65534)
held = [client.register("vgg", sys.argv[1]) for _ in range(2)]
assert all(held)
try:
    client.hello(sys.argv[1])
except client.ControlError as refused:
    print(refused.code, refused)
"""


def test_a_user_has_a_share_and_no_more(here: Place) -> None:
    """The one turned away hears why, though it may be so before it has asked."""

    async def scene() -> None:
        async with served(here, Limits(per_user=2)) as where:
            os.chmod(here.directory, 0o755)  # noqa: PTH101
            command = [sys.executable, "-c", GREEDY, where]
            done = await asyncio.to_thread(
                subprocess.run, command, capture_output=True, text=True, check=True
            )
            assert "busy" in done.stdout
            assert "uid 65534 has 2 connections" in done.stdout

    asyncio.run(scene())


def test_a_flood_from_one_client_lets_others_have_their_turn(here: Place) -> None:
    """Its requests are all there before another asks: none of its reads ever has to wait."""

    async def scene() -> None:
        async with served(here, Limits()) as where:
            with connect(where) as first, connect(where) as second:
                loop = asyncio.get_running_loop()
                order: list[str] = []
                asked = flood(first, HELLO)
                second.setblocking(False)
                second.send(HELLO)

                async def read(name: str, connection: socket.socket, count: int) -> None:
                    for _ in range(count):
                        await loop.sock_recv(connection, MAX_REPLY)
                        order.append(name)

                async with asyncio.TaskGroup() as group:
                    group.create_task(read("first", first, asked))
                    group.create_task(read("second", second, 1))
                assert asked > 5  # what the kernel queues (net.unix.max_dgram_qlen)
                assert order.index("second") < asked // 2

    asyncio.run(scene())
