"""The control socket under clients that are wrong, greedy, slow, or may not."""

import grp
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from agent.running import Agent, Place, place, settled

from p3_agent import client
from p3_agent.jobs import Jobs
from p3_agent.messages import (
    MAX_JOBS,
    MAX_JOBS_OF_A_USER,
    MAX_REPLY,
    MAX_REQUEST,
    ControlError,
    JobStatus,
)

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


def test_a_connection_may_ask_many_things(where: str) -> None:
    with connect(where) as connection:
        assert ask(connection, b'{"type":"hello"}')["type"] == "welcome"
        assert ask(connection, b'{"type":"bands"}')["dscps"] == [41, 39, 23, 17, 15, 9, 7]
        assert ask(connection, b'{"type":"hello","protocol":2}')["code"] == "protocol"
        assert ask(connection, b"nonsense")["code"] == "malformed"
        assert ask(connection, b"")["code"] == "malformed"
        assert ask(connection, b"x" * (MAX_REQUEST + 1))["code"] == "too-large"
        assert ask(connection, b"x" * (20 * MAX_REQUEST))["code"] == "too-large"
        assert ask(connection, b'{"type":"status"}')["state"] == "ok"


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


def test_a_job_is_known_while_its_process_is_connected(where: str) -> None:
    def jobs() -> list[tuple[str, int, int]]:
        status = client.status(where)
        assert status is not None
        return [(job.name, job.pid, job.uid) for job in status.jobs]

    assert jobs() == []
    one, two = client.register("vgg/a-1", where), client.register("resnet", where)
    assert one is not None
    assert two is not None
    with one, two:
        assert jobs() == [("vgg/a-1", os.getpid(), 0), ("resnet", os.getpid(), 0)]
        two.close()
        assert jobs() == [("vgg/a-1", os.getpid(), 0)]
    assert jobs() == []


def _jobs(where: str) -> list[str]:
    status = client.status(where)
    assert status is not None
    return [job.name for job in status.jobs]


def test_a_job_is_announced_without_waiting_for_an_answer(where: str, tmp_path: Path) -> None:
    job = client.announce("vgg", where)
    assert job is not None
    with job:
        # The agent may well answer others before it comes to this one.
        known = next(filter(None, (_jobs(where) for _ in range(100))))
        assert known == ["vgg"]
    assert client.announce("vgg", tmp_path / "nobody.sock") is None


def test_a_client_has_one_job_and_no_more_than_so_many_are_kept(where: str) -> None:
    with ExitStack() as stack:
        held = [stack.enter_context(connect(where)) for _ in range(MAX_JOBS + 1)]
        for name in ("before", "now"):
            for connection in held[:-1]:
                request = json.dumps({"type": "job", "name": name}).encode()
                assert ask(connection, request) == {"type": "done", "steps": []}
        assert ask(held[-1], b'{"type":"job","name":"late"}')["code"] == "busy"
        status = client.status(where)
        assert status is not None
        assert [job.name for job in status.jobs] == ["now"] * MAX_JOBS
    with pytest.raises(client.ControlError, match="name") as caught:
        client.register("no spaces", where)
    assert caught.value.code == "malformed"


def test_no_user_takes_all_places_of_jobs() -> None:
    jobs = Jobs()
    for pid in range(MAX_JOBS_OF_A_USER):
        jobs.enter(JobStatus("one", pid, NOBODY))
    with pytest.raises(ControlError, match=f"uid {NOBODY} has {MAX_JOBS_OF_A_USER}"):
        jobs.enter(JobStatus("one", 0, NOBODY))
    for pid in range(MAX_JOBS - MAX_JOBS_OF_A_USER):
        jobs.enter(JobStatus("all", pid, 0))


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
