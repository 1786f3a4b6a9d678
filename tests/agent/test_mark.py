"""`p3-agent mark`: what a cgroup's sockets send carries a band's mark, and only that."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

import pytest
from agent.cgroups import Group, group, mounted, mounted_at, within
from agent.running import AGENT, PATIENCE, Agent, Place
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6

from p3_agent import client
from p3_agent.errors import AgentError
from p3_agent.mark import Cgroup, Mark
from p3_agent.mark_cgroup import Mount, parse_mounts
from p3_shaper.bands import BandTable, default_table
from p3_shaper.cluster import Node, Pair
from p3_shaper.namespace import socket_in

ETH_P_ALL, ETH_P_IP, ETH_P_IPV6 = 3, 0x0800, 0x86DD
BANDS = default_table().bands

# The listener says that it listens, and ends when both connections have ended.
LISTEN = """
import socket, sys
with socket.create_server(("::", 5000), family=socket.AF_INET6, dualstack_ipv6=True) as server:
    print("listening", flush=True)
    for _ in range(2):
        connection, _ = server.accept()
        with connection:
            while connection.recv(65536):
                pass
            connection.sendall(b"bye")
"""
TALK = """
import socket, sys
tos, *addresses = sys.argv[1:]
for address in addresses:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    level, name = (41, 67) if ":" in address else (0, 1)  # IPV6_TCLASS, IP_TOS
    with socket.socket(family, socket.SOCK_DGRAM) as sender:
        sender.setsockopt(level, name, int(tos))
        sender.sendto(b"x" * 100, (address, 9))
    with socket.socket(family, socket.SOCK_STREAM) as sender:
        sender.setsockopt(level, name, int(tos))
        sender.connect((address, 5000))
        sender.sendall(b"x" * 10_000)
        sender.shutdown(socket.SHUT_WR)
        # To the end: closed earlier, the last ACK were the kernel's own, of no socket.
        assert sender.recv(10, socket.MSG_WAITALL) == b"bye"
"""


@contextmanager
def marking(
    namespace: str, cgroup: str, band: int, *options: str, ready: str = "ready"
) -> Iterator[Agent]:
    """A running `p3-agent mark` that has said it is `ready`."""
    with subprocess.Popen(
        [*within(namespace), AGENT, "mark", "--cgroup", cgroup, "--band", str(band), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "P3_AGENT_SOCKET": "/nonexistent/p3-agent.sock"},
    ) as process:
        marker = Agent(process)
        try:
            marker.await_line(ready, "stdout")
            yield marker
        finally:
            process.kill()


def refusal(
    namespace: str, *options: str, prefix: tuple[str, ...] = (), code: int = 1, **env: str
) -> str:
    """What `p3-agent mark` says when it ends with that status."""
    done = subprocess.run(
        [*within(namespace), *prefix, AGENT, "mark", *options],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        env={**os.environ, "P3_AGENT_SOCKET": "/nonexistent/p3-agent.sock", **env},
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (code, "", 1), done
    return done.stderr


def tables(namespace: str) -> str:
    """Everything that nftables has in a namespace."""
    return subprocess.run(
        [*within(namespace), "nft", "list", "ruleset"], capture_output=True, text=True, check=True
    ).stdout


Flow = tuple[str, int]
"""The kind of packet and the IP version."""


def talk(pair: Pair, inside: Group | None, tos: int = 0) -> dict[Flow, set[int]]:
    """Send UDP and TCP over both versions; the TOS bytes that left node 0, a set a flow."""
    client, server = pair.nodes
    talker = [sys.executable, "-c", TALK, str(tos), server.address, server.address6]
    command = inside.command(client.name, *talker) if inside else [*within(client.name), *talker]
    with listening(server), wire(client) as seen:
        subprocess.run(command, timeout=PATIENCE, check=True)
        return sent(seen, client)


@contextmanager
def listening(node: Node, inside: Group | None = None) -> Iterator[None]:
    listener = [sys.executable, "-c", LISTEN]
    with subprocess.Popen(
        inside.command(node.name, *listener) if inside else [*within(node.name), *listener],
        stdout=subprocess.PIPE,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"listening\n"
            yield
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()


@contextmanager
def wire(node: Node) -> Iterator[socket.socket]:
    """A socket that sees all that passes the node's device from now on."""
    kind = socket.SOCK_DGRAM | socket.SOCK_NONBLOCK
    with socket_in(node.name, socket.AF_PACKET, kind, socket.htons(ETH_P_ALL)) as seen:
        yield seen


def sent(seen: socket.socket, node: Node) -> dict[Flow, set[int]]:
    """The TOS bytes of what left the node with a transport header."""
    flows: dict[Flow, set[int]] = {}
    while True:
        try:
            packet, (_, protocol, *_) = seen.recvfrom(65536)
        except BlockingIOError:
            return flows
        if protocol not in (ETH_P_IP, ETH_P_IPV6):
            continue
        version = packet[0] >> 4
        ip = IP(packet) if version == 4 else IPv6(packet)
        if str(ip.src) not in (node.address, node.address6):
            continue
        if UDP in ip:
            kind = "udp"
        elif TCP in ip:
            kind = "syn" if "S" in str(ip[TCP].flags) else "tcp"
        else:
            continue
        flows.setdefault((kind, version), set()).add(int(ip.tos if version == 4 else ip.tc))


def every(tos: int) -> dict[Flow, set[int]]:
    return {(kind, version): {tos} for kind in ("udp", "syn", "tcp") for version in (4, 6)}


@pytest.fixture
def inside() -> Iterator[Group]:
    with mounted() as root, group(root, f"p3t-{os.getpid()}-mark") as made:
        yield made


def test_the_cgroup_is_marked_and_nothing_else(pair: Pair, inside: Group) -> None:
    namespace = pair.nodes[0].name
    with marking(namespace, str(inside.path), 0) as marker:
        assert marker.said["stdout"].startswith("ready DSCP 41 (band 0) on ")
        assert talk(pair, inside) == every(BANDS[0].tos)
        assert talk(pair, None) == every(0)
        # ECN bits stay as they are, and so does the mark of a program that chose a band itself.
        assert talk(pair, inside, tos=1)["udp", 6] == {BANDS[0].tos | 1}
        assert talk(pair, inside, tos=BANDS[3].tos) == every(BANDS[3].tos)
        assert marker.stop() == 0
    assert tables(namespace) == ""
    assert talk(pair, inside) == every(0)


def test_what_a_marked_program_answers(pair: Pair, inside: Group) -> None:
    client, server = pair.nodes
    with (
        marking(server.name, f"/{inside.path.name}", 1),
        listening(server, inside),
        wire(server) as seen,
    ):
        talker = [sys.executable, "-c", TALK, "0", server.address, server.address6]
        subprocess.run([*within(client.name), *talker], timeout=PATIENCE, check=True)
        flows = sent(seen, server)
    assert flows["tcp", 4] == flows["tcp", 6] == {BANDS[1].tos}
    # The kernel answers a SYN before there is a socket that could be in a cgroup.
    assert flows["syn", 4] == flows["syn", 6] == {0}


def test_a_killed_mark_leaves_nothing(pair: Pair, inside: Group) -> None:
    namespace = pair.nodes[0].name
    with marking(namespace, str(inside.path), 0) as marker:
        assert "flags owner" in tables(namespace)
        assert "ip6 dscp set 0x29" in tables(namespace)
        subprocess.run([*within(namespace), "nft", "flush", "ruleset"], check=True)
        assert "ip6 dscp set 0x29" in tables(namespace)
        marker.stop(signal.SIGKILL)
    assert tables(namespace) == ""


def test_it_follows_a_cgroup_that_is_made_again(pair: Pair, inside: Group) -> None:
    with marking(pair.nodes[0].name, str(inside.path), 0) as marker:
        inside.path.rmdir()
        marker.await_line("is gone")
        assert tables(pair.nodes[0].name) == ""
        inside.path.mkdir()
        marker.await_line("is back")
        assert talk(pair, inside) == every(BANDS[0].tos)


def test_the_deeper_cgroup_wins(pair: Pair, inside: Group) -> None:
    namespace = pair.nodes[0].name
    with (
        group(inside.path, "deeper") as deeper,
        marking(namespace, str(inside.path), 4),
        marking(namespace, f"/{inside.path.name}/deeper", 2),
    ):
        assert talk(pair, deeper) == every(BANDS[2].tos)
        assert talk(pair, inside) == every(BANDS[4].tos)


def test_the_agents_table_decides_and_its_class_counts(here: Place, inside: Group) -> None:
    config = here.config('rate = "100mbit"\ndscps = [9, 7]\n')
    sender = (
        "import socket; s = socket.socket(type=socket.SOCK_DGRAM)\n"
        "for _ in range(10): s.sendto(b'x' * 100, ('10.78.0.2', 9))"
    )
    with (
        here.running("--config", config),
        marking(
            *(here.name, str(inside.path), 1, "--socket", str(here.socket), "--json"),
            ready='"cgroup"',
        ) as marker,
    ):
        said = json.loads(marker.said["stdout"])
        assert said.pop("table") in tables(here.name)
        assert said == {"cgroup": str(inside.path), "band": 1, "dscp": 7}
        subprocess.run(inside.command(here.name, sys.executable, "-c", sender), check=True)
        status = client.status(here.socket)
        assert status is not None
        assert [entry.packets for entry in status.classes[:2]] == [0, 10]


def test_refusals(pair: Pair, inside: Group, tmp_path: Path) -> None:
    namespace = pair.nodes[0].name
    this = ("--cgroup", str(inside.path), "--band")
    assert "there is no cgroup" in refusal(namespace, "--cgroup", "/no/such", "--band", "0")
    assert "not in cgroup2" in refusal(namespace, "--cgroup", str(tmp_path), "--band", "0")
    assert "the root of all" in refusal(
        namespace, "--cgroup", str(inside.path.parent), "--band", "0"
    )
    assert "choose --band 0 to 6" in refusal(namespace, *this, "7", code=2)
    (tmp_path / "libnftables.so.1").touch()
    assert "apt install nftables" in refusal(namespace, *this, "0", LD_LIBRARY_PATH=str(tmp_path))
    no_right = ("setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin")
    assert "CAP_NET_ADMIN" in refusal(namespace, *this, "0", prefix=no_right)
    hide = f'umount --lazy {inside.path.parent} && exec "$@"'
    hidden = ("unshare", "--mount", "sh", "-c", hide, "sh")
    assert "no cgroup2 is mounted here" in refusal(namespace, *this, "0", prefix=hidden)
    with marking(namespace, str(inside.path), 0):
        assert "marked already" in refusal(namespace, *this, "1")
    assert tables(namespace) == ""


def test_a_mount_elsewhere_will_do(pair: Pair, inside: Group, tmp_path: Path) -> None:
    """libnftables looks below /sys/fs/cgroup alone; blanks and backslashes are systemd's."""
    odd = tmp_path / "a b"
    odd.mkdir()
    with (
        mounted_at(odd),
        group(odd / inside.path.name, "c d\\x2de") as deeper,
        marking(pair.nodes[0].name, str(deeper.path), 0),
    ):
        assert talk(pair, deeper) == every(BANDS[0].tos)


def test_mountinfo() -> None:
    text = (
        "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
        "42 31 0:39 / /sys/fs/cgroup/cpu rw shared:9 - cgroup cgroup rw,cpu\n"
        "43 31 259:300 /a/b /mnt/a\\040b rw shared:9 master:2 - cgroup2 none rw\n"
    )
    below, first = parse_mounts(text)
    assert below == Mount(os.makedev(259, 300), PurePosixPath("/a/b"), Path("/mnt/a b"))
    assert first.point == Path("/sys/fs/cgroup/unified")


def test_a_path_that_nft_cannot_write() -> None:
    with pytest.raises(AgentError, match="rename the cgroup"):
        Mark(Cgroup(Path('/sys/fs/cgroup/a"b'), 1, 5), BandTable(), 0)
