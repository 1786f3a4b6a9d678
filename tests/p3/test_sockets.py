from __future__ import annotations

import select
import socket
import subprocess
import sys

import pytest
from support.clusters import MakeCluster

from p3.sockets import (
    Address,
    accept,
    address_towards,
    bound_address,
    deafen,
    dscp_of,
    finish_connect,
    limit_silence,
    limit_window,
    listen,
    mark,
    start_connect,
    tune,
)
from p3_shaper.cluster import Cluster
from p3_shaper.rates import parse_rate

HOSTS = ["127.0.0.1", "::1"]

FLOOD = """
import sys
from p3.sockets import Address, start_connect
sock = start_connect(Address(sys.argv[1], 5000), 41)
sock.setblocking(True)
sock.sendall(bytes(20_000))
sock.recv(1)
sock.sendall(bytes(4_000_000))
"""

SINK = """
import socket, sys
from p3.sockets import Address, accept, limit_window, listen
with listen(Address(sys.argv[1], 5000), 41) as listener:
    print("listens", flush=True)
    listener.setblocking(True)
    socks = [accept(listener, 41)[0] for _ in range(3)]
for sock in socks:
    sock.setblocking(True)
    # The kernel forgets a limit when the first full segment comes.
    sock.recv(20_000, socket.MSG_WAITALL)
    limit_window(sock, int(sys.argv[2]))
for sock in socks:
    sock.send(b"1")
buffer = bytearray(200_000)
while socks:
    for sock in list(socks):
        got = 0
        while got < len(buffer) and (count := sock.recv_into(memoryview(buffer)[got:])):
            got += count
            limit_window(sock, int(sys.argv[2]))
        if got < len(buffer):
            socks.remove(sock)
            sock.close()
"""


def connected(address: Address, dscp: int) -> socket.socket:
    sock = start_connect(address, dscp)
    select.select([], [sock], [], 10)
    try:
        finish_connect(sock, address)
    except OSError:
        sock.close()
        raise
    return sock


@pytest.mark.parametrize("host", HOSTS)
def test_every_end_is_marked_and_tuned(host: str) -> None:
    with listen(Address(host, 0), 23) as listener:
        address = bound_address(listener)
        with connected(address, 23) as near:
            far, peer = accept(listener, 23)
            with far:
                assert peer == bound_address(near)
                for sock in (listener, near, far):
                    assert dscp_of(sock) == 23
                    assert not sock.getblocking()
                    chosen = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
                    assert chosen.rstrip(b"\0") == b"reno"
                    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        with pytest.raises(BlockingIOError):
            accept(listener, 23)


def test_marks_have_no_ecn_bits_and_cover_mapped_addresses() -> None:
    with socket.socket(socket.AF_INET6) as sock:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, 0x03)
        mark(sock, 41)
        assert sock.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS) == 41 << 2
        assert sock.getsockopt(socket.IPPROTO_IP, socket.IP_TOS) == 41 << 2
        mark(sock, 0)
        assert dscp_of(sock) == 0


def test_tuning_twice_is_harmless() -> None:
    with socket.socket() as sock:
        tune(sock)
        tune(sock, unsent_bytes=4096)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) == 4096


def test_silence_is_limited_by_twice_the_timeout() -> None:
    with socket.socket() as sock:
        limit_silence(sock, 1.5)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 3000
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 1


@pytest.mark.parametrize("host", HOSTS)
def test_a_deafened_listener_hears_nobody_and_its_connections_go_on(host: str) -> None:
    with listen(Address(host, 0), 7) as listener:
        address = bound_address(listener)
        with connected(address, 7) as near, accept(listener, 7)[0] as far:
            deafen(listener)
            with start_connect(address, 7) as late:
                assert near.send(b"x") == 1
                assert select.select([far, late], [], [], 10)[0] == [far]
                # The answer to a SYN on loopback is there before the call for it returns.
                assert not select.select([], [late], [], 0)[1]


def test_errors_name_the_address() -> None:
    with listen(Address("127.0.0.1", 0), 7) as listener:
        address = bound_address(listener)
        with pytest.raises(OSError, match=f"cannot listen at 127.0.0.1:{address.port}"):
            listen(address, 7)
    with pytest.raises(OSError, match=f"cannot connect to 127.0.0.1:{address.port}"):
        connected(address, 7)
    with pytest.raises(OSError, match=r"cannot connect to 255.255.255.255:9"):
        connected(Address("255.255.255.255", 9), 7)


@pytest.mark.parametrize("host", HOSTS)
def test_the_own_address_towards_a_host(host: str) -> None:
    assert address_towards(host) == host


def test_no_address_towards_nowhere(make_cluster: MakeCluster) -> None:
    (node,) = make_cluster(1).nodes
    program = "from p3.sockets import address_towards; address_towards('192.0.2.1')"
    asked = node.run([sys.executable, "-c", program], check=False)
    assert "OSError: no route to 192.0.2.1" in asked.stderr


def test_a_window_is_never_under_a_few_segments() -> None:
    with listen(Address("127.0.0.1", 0), 7) as listener:
        limit_window(listener, 1)
        assert listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_WINDOW_CLAMP) > 1


def test_three_senders_whose_windows_fit_a_port_lose_nothing(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(4, parse_rate("500mbit"), 256_000)
    flood(cluster, window=60_000)
    assert drops(cluster) == 0


def flood(cluster: Cluster, window: int) -> None:
    """Nodes 1 to 3 send to node 0 at once."""
    sink, *senders = cluster.nodes
    receiving = [sys.executable, "-c", SINK, sink.address, str(window)]
    with sink.popen(receiving, stdout=subprocess.PIPE) as receiver:
        assert receiver.stdout is not None
        assert receiver.stdout.readline() == "listens\n"
        sending = [node.popen([sys.executable, "-c", FLOOD, sink.address]) for node in senders]
        assert [process.wait(timeout=60) for process in sending] == [0, 0, 0]
        assert receiver.wait(timeout=60) == 0


def drops(cluster: Cluster) -> int:
    """Packets that node 0's switch port dropped."""
    shown = subprocess.run(
        ["ip", "netns", "exec", cluster.switch, "tc", "-s", "qdisc", "show", "dev", "port0"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    words = shown.replace(",", " ").split()
    return sum(int(words[at + 1]) for at, word in enumerate(words) if word == "(dropped")
