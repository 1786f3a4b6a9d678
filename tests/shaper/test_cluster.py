"""Clusters on the real kernel: reachable, shaped, and gone afterwards whatever happens."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.clusters import MakeCluster

from p3_shaper import cluster_names, cluster_nodes
from p3_shaper.cluster import Cluster, ClusterError, Pair, clear_stale
from p3_shaper.cluster_names import ClusterName, Owner, cluster_of
from p3_shaper.rates import parse_rate

OWNER = """
import os, signal, sys
from p3_shaper.cluster import Cluster
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
with Cluster(2, prefix=sys.argv[1]) as cluster:
    cluster.nodes[1].popen(["sleep", "1000"])
    {first}
    print("ready", flush=True)
    {then}
"""
WAIT = "signal.pause()"
FORK = "pid = os.fork(); pid or sys.exit(); os.waitpid(pid, 0)"

SERVER = """
import socket, sys
with socket.create_server((sys.argv[1], 5001), family=int(sys.argv[2])) as server:
    print("listening", flush=True)
    connection, peer = server.accept()
    with connection:
        print(connection.makefile().read(), peer[0])
"""
CLIENT = """
import socket, sys
with socket.create_connection((sys.argv[1], 5001)) as connection:
    connection.sendall(b"hello")
"""

# Ends only by force, as does what it started in yet another session.
STUBBORN = "trap '' TERM; setsid sleep 1000 & echo ready; exec sleep 1000"


@contextmanager
def owner(prefix: str, first: str = "", then: str = WAIT) -> Iterator[subprocess.Popen[str]]:
    """Another process, with a cluster that has a process in it; it is about to do `then`."""
    command = [sys.executable, "-c", OWNER.format(first=first, then=then), prefix]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


@pytest.fixture
def prefix() -> Iterator[str]:
    """A prefix that no other test uses; what a dead owner has left under it goes at the end."""
    name = f"p3-test{os.getpid()}"
    yield name
    clear_stale(name)


def namespaces(prefix: str) -> list[str]:
    return [name for name in cluster_names.every_namespace() if name.startswith(f"{prefix}-")]


def qdiscs(namespace: str, device: str) -> str:
    command = ["tc", "-netns", namespace, "qdisc", "show", "dev", device]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("kind", [Cluster, Pair])
@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_nodes_reach_each_other(
    kind: type[Cluster] | type[Pair], family: socket.AddressFamily
) -> None:
    with kind() as group:
        client, server = group.nodes[:2]
        mine, theirs = [
            node.address if family is socket.AF_INET else node.address6 for node in (client, server)
        ]
        command = [sys.executable, "-c", SERVER, theirs, str(int(family))]
        with server.popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "listening\n"
            client.run([sys.executable, "-c", CLIENT, theirs])
            assert process.stdout.read().split() == ["hello", mine]


def test_addresses_are_usable_at_once(make_cluster: MakeCluster) -> None:
    for node in make_cluster(2).nodes:
        shown = node.run(["ip", "address", "show", "dev", node.device]).stdout
        assert node.address in shown
        assert node.address6 in shown
        assert "tentative" not in shown


def test_caller_sees_no_device_of_the_cluster() -> None:
    before = sorted(Path("/sys/class/net").iterdir())
    with Cluster(2):
        assert sorted(Path("/sys/class/net").iterdir()) == before


def test_links_are_shaped_both_ways(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(2, parse_rate("50mbit"), port_buffer=100_000)
    for node in cluster.nodes:
        assert "qdisc htb 7053: root" in qdiscs(node.name, node.device)
        port = qdiscs(cluster.switch, node.port)
        assert "qdisc htb 7053: root" in port
        assert "limit 100000b" in port


def test_links_without_a_rate_have_no_queue(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(1)
    assert qdiscs(cluster.nodes[0].name, "eth0") == "qdisc noqueue 0: root refcnt 2 \n"


def test_a_flow_gets_no_more_than_the_rate(make_cluster: MakeCluster) -> None:
    rate = parse_rate("50mbit")
    sender, receiver = make_cluster(2, rate).nodes
    with receiver.popen(["iperf3", "-s", "-1", "--forceflush"], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        assert any("listening" in line for line in server.stdout)
        report = sender.run(["iperf3", "-c", receiver.address, "-t", "1", "-J"], timeout=60).stdout
        server.communicate(timeout=60)
    received = json.loads(report)["end"]["sum_received"]["bits_per_second"]
    assert 0 < received < 1.1 * rate.bits_per_second


@pytest.mark.parametrize(
    ("then", "status"),
    [("sys.exit(3)", 3), ("raise ValueError", 1), ("os.kill(os.getpid(), signal.SIGTERM)", 143)],
)
def test_owner_that_leaves_the_block_leaves_nothing(prefix: str, then: str, status: int) -> None:
    with owner(prefix, then=then) as process:
        assert process.wait(timeout=60) == status
    assert namespaces(prefix) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signalled_owner_leaves_nothing(prefix: str, number: signal.Signals) -> None:
    with owner(prefix) as process:
        assert len(namespaces(prefix)) == 3
        process.send_signal(number)
        process.wait(timeout=60)
    assert namespaces(prefix) == []


def test_more_interrupts_do_not_stop_the_removal(prefix: str) -> None:
    with owner(prefix) as process:
        while process.poll() is None:
            process.send_signal(signal.SIGINT)
    assert namespaces(prefix) == []


def test_forked_copy_does_not_remove_the_cluster(prefix: str) -> None:
    with owner(prefix, first=FORK):
        assert len(namespaces(prefix)) == 3


def test_killed_owner_is_found_and_cleared(prefix: str) -> None:
    with owner(prefix) as process:
        assert clear_stale(prefix) == []  # its owner lives
        process.kill()
        process.wait(timeout=60)
    left = namespaces(prefix)
    assert len(left) == 3
    assert clear_stale(prefix) == [left[0].removesuffix("-node0")]
    assert namespaces(prefix) == []


def test_next_cluster_clears_what_a_killed_owner_left(prefix: str) -> None:
    with owner(prefix) as process:
        process.kill()
        process.wait(timeout=60)
    left = namespaces(prefix)
    with Cluster(1, prefix=prefix) as cluster:
        assert not set(left) & set(namespaces(prefix))
        assert cluster.nodes[0].name in namespaces(prefix)


def test_processes_that_do_not_want_to_end_are_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_nodes, "GRACE", 0.1)
    with Cluster(1) as cluster:
        child = cluster.nodes[0].popen(["sh", "-c", STUBBORN], stdout=subprocess.PIPE)
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    with child:
        assert child.poll() == -signal.SIGKILL


def test_failed_making_leaves_nothing(prefix: str) -> None:
    impossible = Cluster(2, parse_rate("50mbit"), port_buffer=1_000, prefix=prefix)
    with pytest.raises(ClusterError, match="a buffer of 1000 bytes holds no packet"), impossible:
        pass
    assert namespaces(prefix) == []


@pytest.mark.parametrize("nodes", [0, 251])
def test_number_of_nodes_is_limited(nodes: int) -> None:
    with pytest.raises(ClusterError, match=f"{nodes} nodes: choose 1 to 250"):
        Cluster(nodes)


def test_run_raises_with_the_error_output(make_cluster: MakeCluster) -> None:
    node = make_cluster(1).nodes[0]
    with pytest.raises(ClusterError, match="ls /nowhere ended with status 2: ls: "):
        node.run(["ls", "/nowhere"])
    assert node.run(["ls", "/nowhere"], check=False).returncode == 2


def test_names_tell_the_owner() -> None:
    name = ClusterName("a-b", Owner(12, 345), 6)
    assert name.namespace("node7") == "a-b-12-345-6-node7"
    assert cluster_of("a-b-12-345-6-node7") == name
    assert cluster_of("a-b-12-345-6-switch") == name
    assert cluster_of("somebody-elses") is None


def test_reused_process_id_is_not_the_owner() -> None:
    started = cluster_names.process_start(os.getpid())
    assert started is not None
    assert Owner(os.getpid(), started).is_alive()
    assert not Owner(os.getpid(), started - 1).is_alive()
