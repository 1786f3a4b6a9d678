"""What the training side asks with, with an agent, without one, and with something else there."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest
from agent.running import Place

from p3_agent import client, messages
from p3_shaper.bands import default_table


@contextmanager
def answering(path: Path, reply: bytes | None) -> Iterator[None]:
    """Something that is no agent: answers one client with `reply`, or hangs up on None."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen()

        def work() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(messages.MAX_REQUEST)
                if reply is not None:
                    connection.sendall(reply)

        thread = Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            thread.join()


def test_nobody_is_none(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    assert client.bands(path) is None
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
    for ask in (client.bands, client.status, client.hello, client.reconcile):
        assert ask(path) is None
    assert client.set_rate("1gbit", path) is None


def test_the_environment_names_the_socket(here: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("P3_AGENT_SOCKET", str(here.socket))
    assert client.bands() is None
    with here.running("--rate", "200mbit", "--bands", "3") as agent:
        assert client.bands() == default_table(3)
        hello = client.hello()
        assert hello is not None
        assert hello.pid == agent.pid
    assert client.bands() is None


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (None, "unreachable"),
        (b"hello there", "bad-reply"),
        (b'{"type":"bands","dscps":[1],"unmarked_share":2,"force":false}', "bad-reply"),
        (b'{"type":"bands","dscps":[46],"unmarked_share":0.1,"force":false}', "bad-reply"),
        (b'{"type":"done","steps":[]}', "bad-reply"),
        (b'{"type":"error","code":"busy","reason":"later"}', "busy"),
        (b" " * (messages.MAX_REPLY + 1), "bad-reply"),
    ],
)
def test_something_else_there_is_an_error(tmp_path: Path, reply: bytes | None, code: str) -> None:
    path = tmp_path / "control.sock"
    with answering(path, reply), pytest.raises(client.ControlError) as caught:
        client.bands(path)
    assert caught.value.code == code


def test_fields_of_a_newer_agent_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    reply = b'{"type":"bands","dscps":[9,7],"unmarked_share":0.1,"force":false,"new":[1]}'
    with answering(path, reply):
        table = client.bands(path)
    assert table is not None
    assert table.dscps == (9, 7)


def test_it_does_not_wait_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "TIMEOUT_S", 0.05)
    path = tmp_path / "control.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen()
        with pytest.raises(client.ControlError, match="did not answer"):
            client.bands(path)


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_a_socket_of_another_kind_is_an_error(tmp_path: Path, kind: socket.SocketKind) -> None:
    path = tmp_path / "control.sock"
    with socket.socket(socket.AF_UNIX, kind) as other:
        other.bind(str(path))
        if kind == socket.SOCK_STREAM:
            other.listen()
        with pytest.raises(client.ControlError) as caught:
            client.bands(path)
    assert caught.value.code == "unreachable"


def test_a_path_that_cannot_be_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(client.ControlError) as caught:
        client.bands(tmp_path / ("x" * 200))
    assert caught.value.code == "unreachable"


def test_importing_it_needs_neither_pyroute2_nor_asyncio() -> None:
    program = (
        "import sys, p3_agent.client\n"
        "print(*({name.partition('.')[0] for name in sys.modules} & {'pyroute2', 'asyncio'}))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.strip() == b""
