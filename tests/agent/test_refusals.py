"""Everything that stops a start: one sentence, a status that says so, and nothing changed."""

import subprocess
import sys

import pytest
from agent.running import AGENT, Place, add_foreign

RATE = ("--rate", "200mbit")
SHAPE = AGENT.replace("p3-agent", "p3-shape")


def refused(here: Place, *arguments: str, what: str, status: int = 1) -> None:
    before = here.shown()
    done = here.agent("run", *arguments)
    assert done.returncode == status
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("p3-agent: ")
    assert what in done.stderr
    assert here.shown() == before
    assert not here.state.exists() or list(here.state.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("--config", "/nonexistent.toml"), "No such file"),
        ((*RATE, "--dev", "eth7"), "no interface 'eth7'"),
        ((), "give --rate"),
        (("--rate", "3mbit"), "guarantees add up"),
        ((*RATE, "--socket", "/proc/nowhere/control.sock"), "--socket"),
        ((*RATE, "--socket", "/etc/hostname"), "is no socket"),
        ((*RATE, "--socket", "/tmp/" + "x" * 200), "--socket"),
        ((*RATE, "--state-dir", "/proc/nowhere"), "--state-dir"),
        ((*RATE, "--metrics", "x" * 64 + ":1"), "--metrics"),
    ],
)
def test_arguments_that_cannot_be(here: Place, arguments: tuple[str, ...], what: str) -> None:
    refused(here, *arguments, what=what)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("--rate", "200"), "no unit"),
        ((*RATE, "--bands", "9"), "bands"),
        ((*RATE, "--dev", ""), "no interface's name"),
        ((*RATE, "--dev", "\udcff"), "no interface's name"),
        ((*RATE, "--metrics", "\u00e4" * 64 + ":1"), "no place for metrics"),
    ],
)
def test_what_is_asked_wrongly_is_usage(here: Place, arguments: tuple[str, ...], what: str) -> None:
    refused(here, *arguments, what=what, status=2)


def test_a_bad_config(here: Place) -> None:
    refused(here, *RATE, "--config", here.config("colour = 1"), what="unknown field", status=2)


def test_guarantees_past_the_rate(here: Place) -> None:
    config = here.config('guarantee = "30mbit"')
    refused(here, *RATE, "--config", config, what="guarantees add up")


def test_a_foreign_root(here: Place) -> None:
    add_foreign(here)
    refused(here, *RATE, what="--takeover")
    plan = here.agent("plan", *RATE)
    assert plan.returncode == 1
    assert "--takeover" in plan.stderr


def test_a_foreign_root_that_could_not_be_put_back(here: Place) -> None:
    here.tc(
        "qdisc add dev eth0 root handle 1: htb",
        "class add dev eth0 parent 1: classid 1:1 htb rate 1gbit",
        "filter add dev eth0 parent 1: protocol ip bpf flowid 1:1 bytecode '1,6 0 0 1'",
    )
    refused(here, *RATE, "--takeover", what="bpf")


def test_no_right_to_change_interfaces(here: Place) -> None:
    before = here.shown()
    done = here.run("setpriv", "--bounding-set=-net_admin", AGENT, "run", *here.options, *RATE)
    assert done.returncode == 1
    assert "CAP_NET_ADMIN" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert here.shown() == before
    plan = here.run("setpriv", "--bounding-set=-net_admin", AGENT, "plan", *here.options, *RATE)
    assert plan.returncode == 0, plan.stderr


def test_a_second_agent_on_the_interface(here: Place) -> None:
    with here.running(*RATE) as agent:
        shown = here.shown()
        for arguments in ((), ("--takeover",), ("--socket", str(here.directory / "other.sock"))):
            done = here.agent("run", *RATE, *arguments)
            assert done.returncode == 1
            assert f"pid {agent.pid}" in done.stderr
        for command in elsewhere(here):
            done = here.agent(*command)
            assert done.returncode == 1
            assert f"pid {agent.pid}" in done.stderr
        assert here.shown() == shown
        assert here.run(AGENT, "status").returncode == 0


SQUAT = """
import os, signal, socket, sys
os.setuid(65534)
with socket.socket(socket.AF_UNIX) as squatter:
    squatter.bind(f"\\0p3-agent/{socket.if_nametoindex('eth0')}")
    if sys.argv[1] == "listens":
        squatter.listen()
    print("ready", flush=True)
    signal.pause()
"""


def elsewhere(here: Place) -> tuple[tuple[str, ...], ...]:
    """Commands that share neither state directory nor socket with the agent that runs."""
    state = ("--state-dir", str(here.directory / "elsewhere"), "--takeover")
    return (("run", *RATE, *state, "--socket", str(here.directory / "o.sock")), ("restore", *state))


@pytest.mark.parametrize("how", ["listens", "is deaf"])
def test_a_user_who_takes_the_name_keeps_nobody_out_and_lets_no_second_in(
    here: Place, how: str
) -> None:
    squatter = (sys.executable, "-c", SQUAT, how)
    with here.starting(*squatter) as stranger, here.running(*RATE) as agent:
        agent.await_line("is taken by what is no agent")
        commands = (("run", *RATE, "--socket", str(here.directory / "o.sock")), *elsewhere(here))
        for _ in range(2):
            for command in commands:
                done = here.agent(*command)
                assert done.returncode == 1
                assert f"another p3-agent (pid {agent.pid}, uid 0) has eth0" in done.stderr
            stranger.stop()  # and then the name is free
        assert agent.stop() == 0
    assert list(here.state.iterdir()) == []


CROWD = """
import os, signal, socket
os.setuid(65534)
name = f"\\0p3-agent/{socket.if_nametoindex('eth0')}"
kept = [socket.socket(socket.AF_UNIX) for _ in range(4)]
for caller in kept:
    caller.setblocking(False)
taken = [caller.connect_ex(name) for caller in kept]
print("ready" if taken[-1] == 11 else taken, flush=True)
signal.pause()
"""


def test_a_user_who_fills_an_agents_lock_lets_no_second_in(here: Place) -> None:
    assert here.run("sysctl", "-w", "net.core.somaxconn=2").returncode == 0
    with here.running(*RATE), here.starting(sys.executable, "-c", CROWD):
        done = here.agent("run", *RATE, "--socket", str(here.directory / "o.sock"))
        assert done.returncode == 1
        assert "another p3-agent has eth0, by " in done.stderr


def test_the_socket_of_another_agent(here: Place) -> None:
    with here.running(*RATE):
        done = here.run(AGENT, "run", "--dev", "lo", "--state-dir", str(here.state), *RATE)
        assert done.returncode == 1
        assert "something listens" in done.stderr


@pytest.mark.parametrize("arguments", [(), ("dance",), ("run", "--mode", "fifo"), ("run", "--x")])
def test_usage_errors(arguments: tuple[str, ...]) -> None:
    done = subprocess.run([AGENT, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "usage: p3-agent" in done.stderr


def test_a_reader_that_leaves_early_is_no_error() -> None:
    command = f"{AGENT} --help | true; {AGENT} plan --dev lo --rate 1gbit | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("where", "status", "said"),
    [(">/dev/full", 1, "No space left on device"), (">&-", 0, ""), ("| true", 0, "")],
)
@pytest.mark.parametrize(
    "command", [(AGENT, "completion", "bash"), (SHAPE, "lo", "1gbit --dry-run")]
)
def test_output_that_cannot_go_anywhere(
    command: tuple[str, ...], where: str, status: int, said: str
) -> None:
    shell = ["bash", "-c", f"{' '.join(command)} {where}"]
    done = subprocess.run(shell, capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == bool(said)


@pytest.mark.parametrize(
    "command",
    [(SHAPE, "\udcff", "1gbit"), (AGENT, "doctor", "--dev", "\udcff")],
    ids=lambda it: it[0],
)
def test_an_interface_s_name_that_is_not_utf_8(command: tuple[str, ...]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "there is no interface '\\udcff'" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_no_device_named() -> None:
    done = subprocess.run([AGENT, "run"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "--dev" in done.stderr
