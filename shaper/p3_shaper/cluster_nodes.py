"""Nodes, and groups of them that are made together and leave nothing behind."""

from __future__ import annotations

import itertools
import os
import shlex
import signal
import subprocess
import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import IO, Self

from p3_shaper import cluster_names, cluster_processes
from p3_shaper.cluster_names import ClusterName, Owner

DEVICE = "eth0"
MAX_NODES = 250
"""One /24 of addresses; a Linux bridge takes 1023 ports."""
GRACE = 5.0
"""Seconds between asking a node's processes to end and killing them."""

_numbers = itertools.count(1)

Argv = Sequence[str | os.PathLike[str]]
Stream = int | IO[str] | IO[bytes] | None


class ClusterError(RuntimeError):
    """A cluster could not be made, used or removed; the message says which command failed."""


class Node:
    """One node: a network namespace `name` with one device, its addresses and its switch port.

    Addresses are `10.77.0.i/24` and `fd77::i/64` with i = `index` + 1; `port` is the device in the
    switch's namespace that sends to this node.
    """

    device = DEVICE

    def __init__(self, index: int, name: str) -> None:
        self.index = index
        self.name = name
        self.address = f"10.77.0.{index + 1}"
        self.address6 = f"fd77::{index + 1:x}"
        self.port = f"port{index}"
        self._children: list[subprocess.Popen[str]] = []

    def __repr__(self) -> str:
        return f"<Node {self.name} {self.address}>"

    def popen(
        self,
        argv: Argv,
        *,
        stdin: Stream = None,
        stdout: Stream = None,
        stderr: Stream = None,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        pass_fds: Sequence[int] = (),
    ) -> subprocess.Popen[str]:
        """Starts a program in the node, in a session of its own; text streams, UTF-8.

        Ctrl-C reaches the owner of the node alone, and removing the node ends the program. The
        streams asked for with PIPE are the caller's to close.
        """
        self.running()  # forgets those that have ended
        child = subprocess.Popen(
            self._command(argv),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env=env,
            cwd=cwd,
            pass_fds=pass_fds,
            encoding="utf-8",
            start_new_session=True,
        )
        self._children.append(child)
        return child

    def run(
        self,
        argv: Argv,
        *,
        check: bool = True,
        timeout: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Runs a program in the node to its end and returns its status and output.

        Raises ClusterError with the program's error output when it fails, unless `check` is False;
        subprocess.TimeoutExpired after `timeout` seconds.
        """
        done = subprocess.run(
            self._command(argv),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            env=env,
            cwd=cwd,
            timeout=timeout,
            check=False,
            start_new_session=True,
        )
        if check and done.returncode != 0:
            raise ClusterError(
                f"{self.name}: {shlex.join(os.fspath(word) for word in argv)} ended with status "
                f"{done.returncode}: {(done.stderr or done.stdout).strip()}"
            )
        return done

    def running(self) -> set[int]:
        """Process ids of what `popen` started and has not ended yet."""
        self._children = [child for child in self._children if child.poll() is None]
        return {child.pid for child in self._children}

    def reap(self) -> None:
        """Waits for what `popen` started; all of it must have been told to end."""
        for child in self._children:
            child.wait()

    def _command(self, argv: Argv) -> list[str | os.PathLike[str]]:
        return ["ip", "netns", "exec", self.name, *argv]


class NodeGroup(ABC):
    """Nodes in namespaces of their own; a context manager that leaves nothing behind.

    Everything is removed when the block is left, also after an exception, Ctrl-C, SIGTERM or
    SIGHUP. What an owner killed outright has left is removed by the next group with the same
    `prefix`, or by `clear_stale`.
    """

    def __init__(self, nodes: int, prefix: str) -> None:
        if not 1 <= nodes <= MAX_NODES:
            raise ClusterError(f"{nodes} nodes: choose 1 to {MAX_NODES}")
        self._name = ClusterName(prefix, _this_process(), next(_numbers))
        self.nodes = tuple(Node(i, self._name.namespace(f"node{i}")) for i in range(nodes))
        self._exits = ExitStack()
        # An interrupt just as __exit__ begins, or no `with` block at all.
        self._last_resort = weakref.finalize(self, _remove_own, self._name)

    @abstractmethod
    def _connect(self) -> None:
        """Links the nodes, whose namespaces exist, to each other."""

    def __enter__(self) -> Self:
        clear_stale(self._name.prefix)
        try:
            self._exits.enter_context(cluster_processes.exit_on_termination())
            self._exits.callback(self._remove)
            with cluster_processes.deferred_signals():
                self._make()
        except BaseException:
            self._exits.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._exits.close()

    def _make(self) -> None:
        batch("ip", [f"netns add {node.name}" for node in self.nodes])
        self._connect()
        for node in self.nodes:
            batch("ip", _address_lines(node), node.name)

    def _remove(self) -> None:
        with cluster_processes.deferred_signals():
            if self._name.owner.pid == os.getpid():  # not in a forked copy of the owner
                running = set().union(*(node.running() for node in self.nodes))
                _remove(self._name, cluster_processes.end(running, signal.SIGTERM, GRACE))
                for node in self.nodes:
                    node.reap()
            self._last_resort.detach()


def clear_stale(prefix: str = "p3") -> list[str]:
    """Removes the groups named with `prefix` whose owner was killed; returns their names.

    Whatever still runs in their namespaces is killed.
    """
    found = cluster_names.stale(prefix)
    for name in found:
        _remove(name, set())
    return [str(name) for name in found]


def batch(program: str, lines: Sequence[str], namespace: str | None = None) -> None:
    """Gives `lines` to one run of `ip` or `tc`; raises ClusterError with its error output."""
    where = [] if namespace is None else ["-netns", namespace]
    if failed := _execute([program, *where, "-batch", "-"], lines):
        place = "" if namespace is None else f"{namespace}: "
        raise ClusterError(f"{place}{program} failed: {failed}; a cluster needs root")


def _remove_own(name: ClusterName) -> None:
    if name.owner.pid == os.getpid():
        _remove(name, set())


def _remove(name: ClusterName, pids: set[int]) -> None:
    namespaces = cluster_names.existing(name)
    left = pids | cluster_processes.inside(namespaces)
    while left:  # a process may start another one before it is killed itself
        if stuck := cluster_processes.end(left, signal.SIGKILL, GRACE):
            raise ClusterError(f"{name}: processes {sorted(stuck)} do not end; end them by hand")
        left = cluster_processes.inside(namespaces)
    # Two processes may clear the same leftovers at once: what is gone already is no error.
    lines = [f"netns delete {namespace}" for namespace in namespaces]
    failed = _execute(["ip", "-force", "-batch", "-"], lines)
    if remaining := cluster_names.existing(name):
        raise ClusterError(f"{name}: could not remove {', '.join(remaining)}: {failed}")


def _address_lines(node: Node) -> list[str]:
    # The kernel's own link-local address would be tentative for a second: give one without DAD.
    return [
        "link set lo up",
        f"link set {DEVICE} addrgenmode none up",
        f"address add {node.address}/24 dev {DEVICE}",
        f"address add fe80::{node.index + 1:x}/64 dev {DEVICE} nodad",
        f"address add {node.address6}/64 dev {DEVICE} nodad",
    ]


def _execute(command: Sequence[str], lines: Sequence[str]) -> str:
    try:
        done = subprocess.run(
            command,
            input="\n".join(lines) + "\n",
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            check=False,
            start_new_session=True,  # Ctrl-C must not stop it half way
        )
    except FileNotFoundError:
        return f"{command[0]} is not installed; install the package iproute2"
    return done.stderr.strip() if done.returncode != 0 else ""


def _this_process() -> Owner:
    pid = os.getpid()
    started = cluster_names.process_start(pid)
    if started is None:
        raise ClusterError(f"cannot read /proc/{pid}/stat; mount /proc")
    return Owner(pid, started)
