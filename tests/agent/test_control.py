"""The control socket under clients that are wrong, greedy, slow, or may not."""

import grp
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import msgspec
import pytest
from agent.running import Agent, Place, place
from hypothesis import given, settings
from hypothesis import strategies as st

from p3_agent import client
from p3_agent.control import MAX_CLIENTS
from p3_agent.messages import MAX_REPLY, MAX_REQUEST

NOBODY = 65534
GROUP = next(entry for entry in grp.getgrall() if 0 < entry.gr_gid < NOBODY)


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Place, Agent]]:
    """A running agent for all of this module, whose writers are GROUP's."""
    with place() as made:
        config = made.config(f'group = "{GROUP.gr_name}"')
        with made.running("--rate", "200mbit", "--config", config) as agent:
            yield made, agent
            assert agent.stop() == 0


@pytest.fixture
def where(served: tuple[Place, Agent]) -> str:
    return str(served[0].socket)


def connect(where: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(10)
    connection.connect(where)
    return connection


def ask(connection: socket.socket, data: bytes) -> dict[str, object]:
    connection.sendall(data)
    reply: dict[str, object] = json.loads(connection.recv(MAX_REPLY))
    return reply


def settled(agent: Agent, where: str, wanted: int) -> bool:
    """Whether the agent comes back to `wanted` open files; each question lets it work on."""
    for _ in range(1000):
        with suppress(client.ControlError):  # still busy
            client.hello(where)
        if agent.descriptors() <= wanted:
            return True
    return False


def test_a_connection_may_ask_many_things(where: str) -> None:
    with connect(where) as connection:
        assert ask(connection, b'{"type":"hello"}')["type"] == "welcome"
        assert ask(connection, b'{"type":"bands"}')["dscps"] == [41, 39, 23, 17, 15, 9, 7]
        assert ask(connection, b'{"type":"hello","protocol":2}')["code"] == "protocol"
        assert ask(connection, b"nonsense")["code"] == "malformed"
        assert ask(connection, b"x" * (MAX_REQUEST + 1))["code"] == "too-large"
        assert ask(connection, b"x" * (20 * MAX_REQUEST))["code"] == "too-large"
        assert ask(connection, b'{"type":"status"}')["state"] == "ok"


FIELDS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=50)
MESSAGES = st.dictionaries(st.sampled_from(["type", "protocol", "rate", "x"]), FIELDS).map(
    msgspec.json.encode
) | st.fixed_dictionaries(
    {"type": st.sampled_from(["hello", "bands", "set-rate", "welcome"])},
    optional={"protocol": FIELDS, "rate": FIELDS},
).map(msgspec.json.encode)


def test_malformed_requests_get_a_code_and_a_reason(served: tuple[Place, Agent]) -> None:
    here, agent = served
    where = str(here.socket)
    assert client.hello(where)
    before = agent.descriptors()

    @settings(max_examples=400, deadline=None)
    @given(st.lists(st.binary(min_size=1, max_size=5000) | MESSAGES, min_size=1, max_size=4))
    def send(requests: list[bytes]) -> None:
        with connect(where) as connection:
            for request in requests:
                reply = ask(connection, request)
                assert reply["type"] in ("welcome", "bands", "error")
                if reply["type"] == "error":
                    assert reply["code"] in ("malformed", "too-large", "protocol", "failed")
                    assert reply["reason"]

    send()
    assert settled(agent, where, before)
    assert here.agent("plan", "--rate", "200mbit").stdout.endswith("it is in place\n")


def test_a_client_that_does_not_read_stops_nobody(where: str) -> None:
    with connect(where) as greedy:
        greedy.setblocking(False)
        with pytest.raises(BlockingIOError):
            while True:
                greedy.send(b'{"type":"status"}')
        assert client.bands(where) is not None


def test_clients_that_leave_early_stop_nobody(served: tuple[Place, Agent]) -> None:
    here, agent = served
    assert client.hello(here.socket)
    before = agent.descriptors()
    for _ in range(50):
        with connect(str(here.socket)) as connection:
            connection.send(b'{"type":"status"}')
    assert settled(agent, str(here.socket), before)


def test_too_many_clients_are_told_so(served: tuple[Place, Agent]) -> None:
    here, agent = served
    where = str(here.socket)
    assert client.hello(where)
    before = agent.descriptors()
    with ExitStack() as stack:
        for _ in range(MAX_CLIENTS):
            held = stack.enter_context(connect(where))
            assert ask(held, b'{"type":"hello"}')["type"] == "welcome"
        with pytest.raises(client.ControlError) as caught:
            client.bands(where)
        assert caught.value.code == "busy"
    assert settled(agent, where, before)


CHILD = """
import json, os, sys
from p3_agent import client
where, uid, gid, groups = json.loads(sys.argv[1])
os.setgroups(groups)
os.setgid(gid)
os.setuid(uid)
assert client.hello(where) and client.bands(where) and client.status(where)
for write in (client.reconcile, lambda where: client.set_rate("200mbit", where)):
    try:
        write(where)
        print("allowed")
    except client.ControlError as error:
        print(error.code)
"""


@pytest.mark.parametrize(
    ("uid", "gid", "groups", "outcome"),
    [
        (0, 0, [], "allowed"),
        (NOBODY, NOBODY, [], "forbidden"),
        (NOBODY, 0, [0], "forbidden"),
        (NOBODY, GROUP.gr_gid, [], "allowed"),
        (NOBODY, NOBODY, [NOBODY, GROUP.gr_gid], "allowed"),
        (NOBODY, NOBODY, [*range(70000, 70300), GROUP.gr_gid], "forbidden"),
    ],
)
def test_all_may_read_root_and_the_group_may_write(
    where: str, uid: int, gid: int, groups: list[int], outcome: str
) -> None:
    who = json.dumps([where, uid, gid, groups])
    done = subprocess.run(
        [sys.executable, "-c", CHILD, who], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [outcome, outcome]


def test_the_socket_is_open_to_all(where: str) -> None:
    assert os.stat(where).st_mode & 0o777 == 0o666  # noqa: PTH116
