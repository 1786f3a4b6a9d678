"""What a service manager hears of an agent, on a real NOTIFY_SOCKET."""

import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent.running import Place

from p3_agent import client
from p3_agent.notify import Notifier

HELD = str(Path(__file__).parents[1] / "support" / "held_agent.py")
WATCHDOG = {"WATCHDOG_USEC": "300000"}


class Manager:
    """Hears what is said on a notify socket."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.settimeout(20)
        self.socket.bind(str(path))
        self.environment = {"NOTIFY_SOCKET": str(path), **WATCHDOG}

    def hear(self) -> dict[str, str]:
        lines = self.socket.recv(4096).decode().split("\n")
        return dict(line.split("=", 1) for line in lines)

    def await_key(self, key: str) -> dict[str, str]:
        while key not in (heard := self.hear()):
            pass
        return heard

    def hears_nothing_for(self, seconds: float) -> bool:
        self.socket.settimeout(seconds)
        try:
            self.hear()
        except TimeoutError:
            return True
        finally:
            self.socket.settimeout(20)
        return False


@pytest.fixture
def manager(here: Place) -> Iterator[Manager]:
    made = Manager(here.directory / "notify")
    with made.socket:
        yield made


def test_it_tells_when_it_is_ready_reloads_lives_and_stops(here: Place, manager: Manager) -> None:
    config = here.config('rate = "200mbit"')
    with here.running("--config", config, environment=manager.environment) as agent:
        ready = manager.hear()
        while "READY" not in ready:
            assert ready == {"WATCHDOG": "1"}
            ready = manager.hear()
        assert ready["STATUS"].startswith("eth0: htb at 200mbit")
        assert ready["STATUS"].endswith(": ok")
        assert manager.await_key("WATCHDOG") == {"WATCHDOG": "1"}
        here.config('rate = "100mbit"')
        agent.process.send_signal(signal.SIGHUP)
        assert int(manager.await_key("RELOADING")["MONOTONIC_USEC"]) > 0
        assert "at 100mbit" in manager.await_key("READY")["STATUS"]
        here.tc("qdisc replace dev eth0 root handle 1: htb")
        while "another program" not in manager.await_key("STATUS")["STATUS"]:
            pass
        agent.process.send_signal(signal.SIGTERM)
        manager.await_key("STOPPING")
        assert agent.process.wait(20) == 0


def test_a_repair_that_hangs_gives_no_sign_of_life(
    here: Place, manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("P3_AGENT_SOCKET", str(here.socket))
    command = (sys.executable, HELD, "eth0", str(here.state))
    with here.starting(*command, environment=manager.environment) as agent:
        manager.await_key("WATCHDOG")
        agent.process.send_signal(signal.SIGUSR1)
        agent.await_line("held", "stdout")
        for _ in range(1000):  # what was said before it hung
            if manager.hears_nothing_for(1.0):
                break
        assert client.hello() is not None  # all else goes on
        assert manager.hears_nothing_for(1.0)
        agent.process.send_signal(signal.SIGUSR2)
        manager.await_key("WATCHDOG")
        assert agent.stop() == 0


def watchdog_s(**environment: str) -> float | None:
    return Notifier(environment).watchdog_s


def test_the_watchdog_is_for_the_process_that_is_named() -> None:
    assert watchdog_s() is None
    assert watchdog_s(WATCHDOG_USEC="30000000") == 30
    assert watchdog_s(WATCHDOG_USEC="30000000", WATCHDOG_PID=str(os.getpid())) == 30
    assert watchdog_s(WATCHDOG_USEC="30000000", WATCHDOG_PID="1") is None
    assert watchdog_s(WATCHDOG_USEC="soon") is None
    assert watchdog_s(WATCHDOG_USEC="0") is None


def test_a_manager_may_listen_in_the_abstract() -> None:
    name = f"p3t-{os.getpid()}-notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"\0{name}")
        Notifier({"NOTIFY_SOCKET": f"@{name}"}).ready("two\nlines")
        assert manager.recv(4096) == b"READY=1\nSTATUS=two lines"


def test_a_manager_that_is_gone_stops_nothing(here: Place) -> None:
    environment = {"NOTIFY_SOCKET": str(here.directory / "nobody")}
    with here.running("--rate", "200mbit", environment=environment) as agent:
        agent.await_line("cannot tell the service manager 'READY=1'")
        assert agent.stop() == 0
