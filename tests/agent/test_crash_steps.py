"""kill -9 after every step of an agent's life, on the real kernel, under a TCP connection."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest
from support import mortal_agent

from p3_shaper.cluster import Node, Pair
from p3_shaper.namespace import socket_in

pytestmark = pytest.mark.calm

TREES = {
    "default": (),
    "htb": (
        "qdisc add dev eth0 root handle 1: htb default 20",
        "class add dev eth0 parent 1: classid 1:1 htb rate 500mbit",
        "class add dev eth0 parent 1:1 classid 1:20 htb rate 100mbit ceil 500mbit prio 3",
        "qdisc add dev eth0 parent 1:20 handle 20: bfifo limit 1mb",
        "filter add dev eth0 parent 1: protocol ip prio 5 handle 7: u32 divisor 4",
        "filter add dev eth0 parent 1: protocol ip prio 5 u32 ht 7:2: match ip tos 4 0xfc "
        "flowid 1:20",
        "filter add dev eth0 parent 1: protocol ip prio 9 u32 match ip dport 80 0xffff flowid 1:20",
    ),
}


@contextmanager
def echo(node: Node) -> Iterator[int]:
    """A TCP server on the node that sends back what it is sent by one client; its port."""
    with socket_in(node.name, socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.bind((node.address, 0))
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                while data := connection.recv(65536):
                    connection.sendall(data)

        thread = Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES.keys())
def test_killed_anywhere_it_ends_in_the_wanted_or_the_original_tree(
    pair: Pair, tmp_path: Path, tree: tuple[str, ...]
) -> None:
    node, peer = pair.nodes
    with echo(peer) as port:
        done = subprocess.run(
            [
                *("ip", "netns", "exec", node.name, sys.executable, str(mortal_agent.__file__)),
                *(str(tmp_path), peer.address, str(port), *tree),
            ],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": str(Path(mortal_agent.__file__).parents[1])},
        )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.splitlines()[-1]) > 100
