"""`p3-agent top`: rates, and who sends; on a terminal and without one."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from agent.running import AGENT, PATIENCE, Place

from p3_agent.messages import ClassStatus, Drift, Status
from p3_agent.processes import Process, command_of
from p3_agent.sample import Reading, sample
from p3_agent.top_text import fitted, lines
from p3_shaper.bands import default_table
from p3_shaper.sockdiag import Socket

RATE = ("--rate", "200mbit")

SENDER = """
import select, socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
    sender.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, int(sys.argv[1]))
    sender.connect(("10.78.0.2", 9))
    sender.send(b"x" * 1000)
    print("sending", flush=True)
    while not select.select([sys.stdin], [], [], 0.01)[0]:
        sender.send(b"x" * 1000)
"""


@contextmanager
def sending(here: Place, tos: int) -> Iterator[int]:
    """A process that sends marked datagrams all the while; its id."""
    with subprocess.Popen(
        ["ip", "netns", "exec", here.name, sys.executable, "-c", SENDER, str(tos)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"sending\n"
        yield process.pid


def test_json_tells_rates_and_who_sends(here: Place) -> None:
    band = default_table().bands[2]
    with here.running(*RATE), sending(here, band.tos) as pid:
        done = here.run(AGENT, "top", "--json", "--count", "2", "--interval", "0.2")
    assert done.returncode == 0, done.stderr
    samples = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(samples) == 2
    for seen in samples:
        assert seen["device"] == "eth0"
        assert seen["limit"] == 200_000_000
        assert [entry["band"] for entry in seen["bands"]] == [*range(7), None]
        busy = seen["bands"][2]
        assert busy["dscp"] == band.dscp
        assert busy["rate"] > 0
        assert [sender["pid"] for sender in busy["senders"]] == [pid]
        assert busy["senders"][0]["command"].startswith("python")
        assert all(entry["rate"] == 0 for entry in seen["bands"] if entry["band"] in (0, 1, 3))


def test_without_a_terminal_it_prints_tables(here: Place) -> None:
    with here.running(*RATE):
        done = here.run(AGENT, "top", "--count", "2", "--interval", "0.1")
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    assert done.stdout.count("packets/s") == 2


def test_without_root_senders_have_no_names(here: Place) -> None:
    nobody = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups")
    with here.running(*RATE), sending(here, default_table().bands[0].tos):
        done = here.run(*nobody, AGENT, "top", "--count", "1", "--interval", "0.1")
    assert done.returncode == 0, done.stderr
    assert "uid 0" in done.stdout
    assert "run as root to see who they are" in done.stdout


NAMED = """
with open("/proc/self/comm", "wb") as name:
    name.write(b"\\x1b]0;x\\x07\\n y")
print("named", flush=True)
input()
"""


def test_a_name_that_a_process_chose_does_nothing_to_the_terminal() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", NAMED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "named\n"
        assert command_of(process.pid) == "?]0;x?? y"
        process.communicate("\n")


def test_bad_arguments_are_usage(here: Place) -> None:
    for wrong in (("--interval", "0"), ("--count", "0"), ("--interval", "soon")):
        assert here.run(AGENT, "top", *wrong).returncode == 2
    done = here.run(AGENT, "top", "--json")
    assert done.returncode == 1
    assert "no agent listens" in done.stderr


@pytest.mark.parametrize("how", ["q", "ctrl-c", "TERM"])
def test_a_terminal_is_given_back(here: Place, how: str) -> None:
    master, slave = pty.openpty()
    command = (AGENT, "top", "--interval", "0.1")
    try:
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
        before = termios.tcgetattr(slave)
        with (
            here.running(*RATE),
            subprocess.Popen(
                ["ip", "netns", "exec", here.name, "setsid", "--ctty", *command],
                stdin=slave,
                stdout=slave,
                stderr=slave,
                env=here.environment,
            ) as top,
        ):
            read_until(master, b"packets/s")
            fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 3, 12, 0, 0))
            small = read_until(master, b"\x1b[J", b"\x1b[J")
            assert all(len(line) <= 12 for line in plain(small).splitlines())
            if how == "TERM":
                top.send_signal(signal.SIGTERM)
            else:
                os.write(master, b"q" if how == "q" else b"\x03")
            read_until(master, b"\x1b[?1049l")
            assert top.wait(PATIENCE) == 0
        assert termios.tcgetattr(slave) == before
    finally:
        os.close(master)
        os.close(slave)


def read_until(master: int, *parts: bytes) -> bytes:
    """What the terminal shows until `parts` have come, one after another; the last stretch."""
    seen = b""
    for part in parts:
        seen = b"" if part in seen else seen
        while part not in seen:
            ready, _, _ = select.select([master], [], [], PATIENCE)
            assert ready, f"no {part!r} in {seen!r}"
            seen += os.read(master, 65536)
    return seen


def plain(screen: bytes) -> str:
    """The last full screen without its escapes."""
    last = screen.rpartition(b"\x1b[J")[0].rpartition(b"\x1b[H")[2]
    return last.replace(b"\x1b[K", b"").decode()


def status(*classes: ClassStatus) -> Status:
    drift = Drift(0, ())
    return Status("1", 7, "eth0", 2, "htb", "as asked", 10**6, "ok", classes, (), drift, 1)


def counted(band: int | None, dscp: int | None, octets: int, drops: int = 0) -> ClassStatus:
    return ClassStatus(band, dscp, f"7033:{band}", None, octets, 1, drops, 5000, 4, 0)


def connection(inode: int, dscp: int, sent: int, peer: str = "10.0.0.2") -> Socket:
    return Socket("tcp", inode, 1000, "10.0.0.1", inode, peer, 80, dscp, 7, 0, sent)


def test_a_sample_is_the_difference_of_two_readings() -> None:
    first = Reading(
        10.0,
        status(counted(0, 41, 1000, 3), counted(None, None, 500)),
        [connection(1, 41, 100), connection(2, 41, 0)],
    )
    second = Reading(
        12.0,
        status(counted(0, 41, 2000, 5), counted(None, None, 100)),
        [
            connection(1, 41, 1100),
            connection(2, 41, 500),
            connection(3, 41, 250),  # new: all it has sent, it has sent since
            connection(4, 13, 0),  # no band's mark
            connection(5, 41, 0, "127.0.0.1"),
            connection(0, 41, 0),  # nobody has accepted it yet
        ],
        {1: Process(8, "rank"), 2: Process(8, "rank")},
    )
    seen = sample(first, second)
    urgent, other = seen.bands
    assert (urgent.rate, urgent.dropped, urgent.drops) == (8 * 1000 / 2, 2, 5)
    assert other.rate == 8 * 100 / 2  # the counter began again
    assert [(item.pid, item.sockets, item.rate) for item in urgent.senders] == [
        (8, 2, 8 * 1500 / 2),
        (None, 1, 8 * 250 / 2),
    ]
    assert [item.uid for item in other.senders] == [1000]
    shown = lines(seen, ["a note"])
    assert shown[0].startswith("eth0: 4.4 kbit/s of 1mbit")
    assert shown[3].endswith("5.0 kB        4  rank[8] x2 6.0 kbit/s, uid 1000 1.0 kbit/s")
    assert shown[-1] == "a note"
    assert fitted(shown, 4, 2) == ["eth0", ""]
