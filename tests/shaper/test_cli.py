"""p3-shape, as a user meets it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from p3_shaper.cli import main
from p3_shaper.cluster import Node, Pair

pytestmark = pytest.mark.calm

Capture = pytest.CaptureFixture[str]


def state(node: Node) -> str:
    """Everything that p3-shape might touch in a node."""
    qdiscs = node.run(["tc", "qdisc", "show"]).stdout
    classes = node.run(["tc", "class", "show", "dev", "eth0"]).stdout
    filters = node.run(["tc", "filter", "show", "dev", "eth0", "ingress"]).stdout
    links = node.run(["ip", "-br", "link", "show"]).stdout
    return re.sub(r"direct_packets_stat \d+", "", qdiscs + classes + filters + links)


def shape(node: Node, *arguments: str) -> int:
    return main(["eth0", *arguments, "--netns", node.name])


def test_a_rate_is_echoed_applied_and_taken_away(pair: Pair, capsys: Capture) -> None:
    node = pair.nodes[0]
    before = state(node)
    assert shape(node, "200Mbit") == 0
    assert capsys.readouterr().out == "eth0: 200mbit out, buffer 1.25MB\n"
    assert "class htb 7053:10 root leaf 7063: prio 0 rate 200Mbit ceil 200Mbit" in state(node)
    assert "bfifo 7063: dev eth0 parent 7053:10 limit 1250000b" in state(node)
    assert shape(node, "0.3gbit", "--buffer", "256KB") == 0
    assert capsys.readouterr().out == "eth0: 300mbit out, buffer 256KB\n"
    assert "rate 300Mbit" in state(node)
    assert "limit 250Kb" in state(node)  # tc counts in 1024s
    assert shape(node, "--clear") == 0
    assert capsys.readouterr().out == "eth0: not limited by p3-shape\n"
    assert state(node) == before


@pytest.mark.parametrize("family", [4, 6])
def test_what_comes_in_goes_through_an_ifb_of_ours(
    pair: Pair, capsys: Capture, family: int
) -> None:
    node, peer = pair.nodes
    before = state(node)
    assert shape(node, "50mbit", "--ingress") == 0
    assert capsys.readouterr().out == "eth0: 50mbit in, buffer 312.5KB\n"
    assert "mirred (Egress Redirect to device p3ifb" in state(node)
    assert shape(node, "60mbit", "--ingress") == 0
    address = node.address if family == 4 else node.address6
    server = node.popen([sys.executable, "-c", SERVER, address], stdout=subprocess.PIPE)
    assert server.stdout is not None
    assert server.stdout.readline() == "listening\n"
    peer.run([sys.executable, "-c", CLIENT, address])
    assert server.stdout.readline() == "3000000\n"
    server.stdout.close()
    server.wait()
    counted = node.run(["tc", "-s", "qdisc", "show"]).stdout.split("p3ifb")[1]
    assert int(counted.split("Sent ")[1].split()[0]) > 3_000_000
    assert shape(node, "--clear") == 0
    assert state(node) == before


SERVER = """
import socket, sys
address = sys.argv[1]
family = socket.AF_INET6 if ":" in address else socket.AF_INET
with socket.create_server((address, 5001), family=family) as server:
    print("listening", flush=True)
    connection, _ = server.accept()
    with connection:
        print(sum(map(len, iter(lambda: connection.recv(1 << 16), b""))), flush=True)
"""
CLIENT = """
import socket, sys
with socket.create_connection((sys.argv[1], 5001)) as connection:
    connection.sendall(bytes(3_000_000))
"""


@pytest.mark.parametrize("way", [[], ["--ingress"]], ids=["out", "in"])
def test_a_dry_run_says_what_it_would_do_and_changes_nothing(
    pair: Pair, capsys: Capture, way: list[str]
) -> None:
    node = pair.nodes[0]
    before = state(node)
    assert shape(node, "200mbit", "--dry-run", *way) == 0
    said = capsys.readouterr().out
    assert "add class 7053:10 parent 7053: htb rate 200mbit ceil 200mbit" in said
    assert ("redirect to p3ifb" in said) == bool(way)
    assert state(node) == before
    assert shape(node, "200mbit", *way) == 0
    shaped = state(node)
    capsys.readouterr()
    assert shape(node, "200mbit", "--dry-run", *way) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1
    assert shape(node, "300mbit", "--dry-run", *way) == 0
    assert "change class 7053:10" in capsys.readouterr().out
    assert shape(node, "--clear", "--dry-run") == 0
    said = capsys.readouterr().out
    assert ("delete qdisc ffff: ingress" if way else "delete qdisc 7053: root") in said
    assert said.endswith("eth0: would not be limited by p3-shape\n")
    assert state(node) == shaped


@pytest.mark.parametrize(
    ("foreign", "way"),
    [
        ("qdisc add dev eth0 root handle 1: htb", []),
        ("qdisc add dev eth0 ingress", ["--ingress"]),
        ("qdisc add dev eth0 clsact", ["--ingress"]),
    ],
    ids=["root", "ingress", "clsact"],
)
def test_what_others_made_is_neither_replaced_nor_cleared(
    pair: Pair, capsys: Capture, foreign: str, way: list[str]
) -> None:
    node = pair.nodes[0]
    node.run(["tc", *foreign.split()])
    before = state(node)
    assert shape(node, "200mbit", *way) == 1
    error = capsys.readouterr().err
    assert "which p3-shape did not make, so nothing was changed: remove it first" in error
    assert error.count("\n") == 1
    assert shape(node, "--clear") == 0
    assert state(node) == before


def test_an_ifb_of_our_name_that_is_none_is_left_alone(pair: Pair, capsys: Capture) -> None:
    node = pair.nodes[0]
    number = node.run(["cat", "/sys/class/net/eth0/ifindex"]).stdout.strip()
    node.run(["ip", "link", "add", f"p3ifb{number}", "type", "bridge"])
    before = state(node)
    assert shape(node, "200mbit", "--ingress") == 1
    assert "is there already and of another kind (bridge): rename it" in capsys.readouterr().err
    assert state(node) == before


@pytest.mark.parametrize(
    ("arguments", "status", "sentence"),
    [
        (["eth0"], 2, "there is no rate: name one, like 200mbit, or --clear"),
        (["eth0", "200"], 2, "'200' has no unit: write 200mbit or 200gbit"),
        (["eth0", "200mbps"], 2, "not one of bits a second"),
        (["eth0", "200mbit", "--buffer", "256"], 2, "'256' has no unit: write 256KB"),
        (["eth0", "200mbit", "--clear"], 2, "--clear takes neither RATE nor --buffer"),
        (["eth0", "200mbit", "--buffer", "1KB"], 1, "choose at least 65536B"),
        (["eth0", "200mbit", "--buffer", "5GB"], 1, "choose at most 4GB"),
        (["eth0", "9" * 5000 + "mbit"], 2, "is not a rate"),
        (["eth9", "200mbit"], 1, "there is no interface 'eth9'"),
    ],
)
def test_errors_are_one_sentence(
    pair: Pair, capsys: Capture, arguments: list[str], status: int, sentence: str
) -> None:
    before = state(pair.nodes[0])
    assert main([*arguments, "--netns", pair.nodes[0].name]) == status
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("p3-shape: ")
    assert sentence in printed.err
    assert printed.err.count("\n") == 1
    assert state(pair.nodes[0]) == before


def test_a_namespace_that_is_not_there_is_not_made(capsys: Capture) -> None:
    assert main(["eth0", "1gbit", "--netns", "p3-nowhere"]) == 1
    assert "no network namespace 'p3-nowhere': name one" in capsys.readouterr().err
    assert not Path("/run/netns/p3-nowhere").exists()


def test_without_the_privilege_it_says_which_one(pair: Pair) -> None:
    node = pair.nodes[0]
    plain = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
    command = [sys.executable, "-m", "p3_shaper.cli", "eth0", "1gbit"]
    done = node.run([*plain, *command], check=False)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "needs CAP_NET_ADMIN: run it as root" in done.stderr
