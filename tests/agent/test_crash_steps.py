"""kill -9 after every step of an agent's life, on the real kernel, under a TCP connection."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Thread

from support import mortal_agent

from p3_shaper.cluster import Node, Pair
from p3_shaper.namespace import socket_in

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


@contextmanager
def trial(state: Path, tree: tuple[str, ...]) -> Iterator[subprocess.Popen[str]]:
    """A run of `mortal_agent` on `tree`, in a pair of nodes of its own."""
    with Pair() as pair, echo(pair.nodes[1]) as port:
        node, peer = pair.nodes
        state.mkdir()
        with subprocess.Popen(
            [
                *("ip", "netns", "exec", node.name, sys.executable, str(mortal_agent.__file__)),
                *(str(state), peer.address, str(port), *tree),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(mortal_agent.__file__).parents[1])},
        ) as process:
            try:
                yield process
            finally:
                process.kill()


def test_killed_anywhere_it_ends_in_the_wanted_or_the_original_tree(tmp_path: Path) -> None:
    """All trees at once: each change of a root waits for the kernel more than it works."""
    with ExitStack() as stack:
        trials = {
            name: stack.enter_context(trial(tmp_path / name, tree)) for name, tree in TREES.items()
        }
        for name, process in trials.items():
            said, errors = process.communicate()
            assert process.returncode == 0, f"{name}: {errors}"
            assert int(said.splitlines()[-1]) > 100
