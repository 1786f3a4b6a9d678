"""`p3-agent doctor` on the real kernel: each thing amiss is made, and found."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from agent.running import AGENT, Place, place

from p3_agent.doctor.programs import CALLS
from p3_shaper.bands import default_table

RATE = ("--rate", "200mbit")
TOS = str(default_table().bands[1].tos)

HOLD = """
import socket, sys
tos, peer, congestion = int(sys.argv[1]), sys.argv[2], sys.argv[3]
with socket.socket() as sender:
    sender.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos)
    if congestion:
        sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion.encode())
    sender.setblocking(False)
    sender.connect_ex((peer, 9))
    print("there", flush=True)
    sys.stdin.read()
"""

SINK = """
import socket
with socket.create_server(("10.78.0.2", 5001)) as server:
    print("listening", flush=True)
    taken, _ = server.accept()
    with taken:
        while taken.recv(1 << 16):
            pass
"""

FLOOD = """
import select, socket, sys
with socket.socket() as sender:
    sender.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, int(sys.argv[1]))
    sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
    sender.connect(("10.78.0.2", 5001))
    sender.setblocking(False)
    sent, full = 0, False
    while not select.select([sys.stdin], [], [], 0)[0]:
        if select.select([], [sender], [], 0.05)[1]:
            sent += sender.send(bytes(1 << 16))
        if not full and sent > 8 << 20:
            full = True
            print("flooding", flush=True)
"""


def found(here: Place, *arguments: str) -> dict[str, tuple[str, str]]:
    """What doctor finds: level and words, by check; the exit status must fit."""
    done = here.run(AGENT, "doctor", "--json", *arguments)
    assert done.stderr == ""
    findings = json.loads(done.stdout)["findings"]
    ill = any(item["level"] != "note" for item in findings)
    assert done.returncode == int(ill)
    return {
        item["check"]: (item["level"], item["seen"] + " | " + item["mend"]) for item in findings
    }


TCX = """
import ctypes, os, socket, struct, sys
def bpf(command, *fields):
    attributes = b"".join(fields)
    libc = ctypes.CDLL(None, use_errno=True)
    done = libc.syscall(int(sys.argv[1]), command, attributes, len(attributes))
    if done < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return done
code = ctypes.create_string_buffer(struct.pack("=BBhiBBhi", 0xb7, 0, 0, -1, 0x95, 0, 0, 0))
words = ctypes.create_string_buffer(b"GPL")
load = struct.pack("=IIQQ", 3, 2, ctypes.addressof(code), ctypes.addressof(words))
passed = bpf(5, load)  # "go on", for sched_cls
bpf(8, struct.pack("=IIIIIIQ", socket.if_nametoindex("eth0"), passed, 47, 0, 0, 0, 0))
"""


@contextmanager
def program(namespace: str, code: str, *arguments: str) -> Iterator[None]:
    """A Python program in `namespace`, from its first line of output on; ended at the end."""
    with subprocess.Popen(
        ["ip", "netns", "exec", namespace, sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        try:
            yield
        finally:
            process.kill()


def test_a_program_of_tcx(here: Place) -> None:
    done = here.run(sys.executable, "-c", TCX, str(CALLS[platform.machine()]))
    noted = found(here, "--dev", "eth0", "--seconds", "0")
    if "Invalid argument" in done.stderr:  # before Linux 6.6
        assert "egress" not in noted
    else:
        assert (done.returncode, done.stderr) == (0, "")
        level, words = noted["egress"]
        assert level == "note"
        assert "1 bpf programs of tcx at the egress of eth0" in words


AF_XDP = """
import socket, sys
with socket.socket(44, socket.SOCK_RAW):
    print("there", flush=True)
    sys.stdin.read()
"""


def test_sockets_that_pass_no_qdisc(here: Place) -> None:
    look = ("--dev", "eth0", "--seconds", "0")
    assert "bypass" not in found(here, *look)
    with program(here.name, AF_XDP):
        assert "1 AF_XDP sockets are open" in found(here, *look)["bypass"][1]


def test_a_sound_node_and_its_agent_have_only_notes(here: Place) -> None:
    with here.running(*RATE):
        noted = found(here)
        assert {level for level, _ in noted.values()} == {"note"}
        assert "marked sockets had nothing waiting" in noted["bottleneck"][1]
        assert "agent" not in noted
        text = here.run(AGENT, "doctor", "--seconds", "0")
        assert text.returncode == 0
        assert "note: stack: eth0 is one end of a veth pair" in text.stdout
    assert found(here, "--dev", "eth0")["agent"][0] == "note"


def test_an_interface_that_was_renamed_is_the_agent_s_still(here: Place) -> None:
    with here.running(*RATE):
        for step in ("eth0 down", "eth0 name eth9", "eth9 up"):
            here.ip(f"link set {step}")
        for named in ((), ("--dev", "eth9")):
            done = here.run(AGENT, "doctor", "--seconds", "0", "--json", *named)
            found = json.loads(done.stdout)
            assert found["device"] == "eth9"
            assert "agent" not in {item["check"] for item in found["findings"]}


def test_without_an_interface_or_with_a_wrong_one_it_is_usage(here: Place) -> None:
    for arguments in ((), ("--dev", "eth7"), ("--dev", "eth0", "--rate", "7")):
        done = here.run(AGENT, "doctor", *arguments)
        assert done.returncode == 2
        assert done.stdout == ""
        assert done.stderr.splitlines()[-1].startswith(("p3-agent: ", "p3-agent doctor: "))


def test_a_link_that_is_down_and_packets_that_outgrew_the_bursts(here: Place) -> None:
    with here.running(*RATE):
        here.ip("link set dev eth0 gso_max_size 200000", "link set dev eth0 down")
        seen = found(here, "--seconds", "0")
    assert seen["link"][0] == "error"
    assert seen["burst"][0] == "warning"
    assert "200000" in seen["burst"][1]


def test_filters_before_the_root(here: Place) -> None:
    with here.running(*RATE):
        here.tc(
            "qdisc add dev eth0 clsact",
            "filter add dev eth0 egress protocol ip prio 3 u32 match ip dport 80 0xffff"
            " action mirred egress redirect dev peer0",
        )
        level, words = found(here, "--seconds", "0")["egress"]
        assert level == "error"
        assert "sends what it matches to peer0, past the bands" in words
        mend = words.partition(" | ")[2].removeprefix("tc ")
        here.tc(mend)  # the command that it names mends it
        assert "egress" not in found(here, "--seconds", "0")


def test_rules_that_rewrite_the_mark(here: Place) -> None:
    rules = (
        "table inet t {\nchain out {\ntype filter hook postrouting priority 0\n"
        "ip dscp 41 ip dscp set 0\n}\n}\n"
    )
    assert here.run("nft", rules).returncode == 0
    level, words = found(here, "--dev", "eth0", "--seconds", "0")["marks"]
    assert level == "warning"
    assert "nftables' inet t out (hook postrouting)" in words
    assert here.run(*words.partition(" | ")[2].split()).returncode == 0
    assert "marks" not in found(here, "--dev", "eth0", "--seconds", "0")


def test_a_foreign_root(here: Place) -> None:
    with here.running(*RATE):
        here.tc("qdisc replace dev eth0 root handle 9: pfifo")
        seen = found(here, "--seconds", "0")
        assert seen["root"][0] == "error"
        assert "pfifo 9:" in seen["root"][1]
        here.tc("qdisc del dev eth0 root")
    here.tc("qdisc replace dev eth0 root handle 9: pfifo")
    assert found(here, "--dev", "eth0", "--seconds", "0")["root"][0] == "warning"


def test_peers_behind_another_interface_and_cubic_with_hystart(here: Place) -> None:
    here.ip(
        "link add eth1 type veth peer name peer1",
        "addr add 10.79.0.1/24 dev eth1",
        "neigh add 10.79.0.2 lladdr 02:00:00:00:00:02 dev eth1 nud permanent",
        "link set eth1 up",
        "link set peer1 up",
    )
    with here.running(*RATE), program(here.name, HOLD, TOS, "10.79.0.2", "cubic"):
        seen = found(here, "--seconds", "0")
    assert seen["route"][0] == "error"
    assert "to 10.79.0.2 leave by eth1" in seen["route"][1]
    assert seen["congestion"][0] == "warning"


@pytest.fixture
def path() -> Iterator[tuple[Place, Place, Place]]:
    """Three namespaces in a row: a sender with eth0, a switch, and a receiver at 10.78.0.2."""
    with place() as sender, place() as switch, place() as receiver:
        for end in (switch, receiver):
            end.ip("link del eth0")
        sender.ip("neigh del 10.78.0.2 dev eth0", f"link set peer0 netns {switch.name}")
        switch.ip(
            "link add eth9 type veth peer name eth0",
            f"link set eth0 netns {receiver.name}",
            "link add br0 type bridge",
            "link set peer0 master br0 up",
            "link set eth9 master br0 up",
            "link set br0 up",
        )
        receiver.ip("addr add 10.78.0.2/24 dev eth0", "link set eth0 up")
        yield sender, switch, receiver


def test_where_the_queue_is(path: tuple[Place, Place, Place]) -> None:
    sender, switch, receiver = path
    switch.tc("qdisc add dev eth9 root handle 5: tbf rate 40mbit burst 64kb limit 96kb")
    with program(receiver.name, SINK), sender.running(*RATE), program(sender.name, FLOOD, TOS):
        behind = found(sender)
        assert behind["bottleneck"][0] == "error"
        assert "the queue is behind this node" in behind["bottleneck"][1]
        switch.tc("qdisc del dev eth9 root")
        # The connection has to grow again first.
        assert any("bottleneck" not in found(sender) for _ in range(10))


def test_a_slow_queue_below_the_bands(here: Place) -> None:
    here.tc("qdisc add dev eth0 root handle 5: tbf rate 1mbit burst 16kb limit 64kb")
    here.ip(
        "link add link eth0 name mac0 type macvlan mode bridge",
        "addr add 10.80.0.1/24 dev mac0",
        "link set mac0 up",
        "neigh add 10.80.0.2 lladdr 02:00:00:00:00:02 dev mac0 nud permanent",
    )
    seen = found(here, "--dev", "mac0", "--seconds", "0")
    assert seen["below"][0] == "warning"
    with program(here.name, DATAGRAMS, TOS):
        level, words = found(here, "--dev", "mac0")["below"]
    assert level == "error"
    assert "bytes wait in tbf of eth0, beneath the bands of mac0" in words


DATAGRAMS = """
import socket, sys, time
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
    sender.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, int(sys.argv[1]))
    sender.connect(("10.80.0.2", 9))
    for number in range(10**9):
        sender.send(bytes(1000))
        if number == 100:
            print("sending", flush=True)
        time.sleep(0.002)
"""
