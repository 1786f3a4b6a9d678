"""What a test may leave behind: namespaces, processes, threads, file descriptors."""

from __future__ import annotations

import ctypes
import gc
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from p3_shaper import cluster_names

_SETTLE = 5.0
"""Seconds for what a test has told to end (a thread, a process) to be gone."""
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True)
class Resource:
    """One thing that this process holds: `name` identifies it among its kind."""

    kind: Literal["network namespace", "process", "thread", "file descriptor"]
    name: str


Resources = dict[Resource, str]
"""What is held, with words that help to find where it comes from."""


def adopt_orphans() -> None:
    """Makes this process the parent of its descendants' orphans, so that they are seen as ours."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def observe(*, native_threads: bool) -> Resources:
    """What this process holds now; threads unknown to Python only if `native_threads`."""
    return dict((*_namespaces(), *_children(), *_threads(native_threads), *_descriptors()))


def leaked_since(before: Resources, *, native_threads: bool, settle: float = _SETTLE) -> Resources:
    """What is held beyond `before` once all that was told to end has had `settle` seconds to."""
    gc.collect()
    # What is still alive is in use. Looking through all modules after each test took a third of
    # the suite's time.
    gc.freeze()
    deadline = time.monotonic() + settle
    while True:
        _reap_ended(before)
        now = observe(native_threads=native_threads)
        leaked = {resource: words for resource, words in now.items() if resource not in before}
        if not leaked or time.monotonic() > deadline:
            return leaked
        _await_one(leaked, deadline)


def remove(leaked: Resources) -> None:
    """Ends and removes what can be, so that the next test starts clean."""
    for resource in leaked:
        if resource.kind == "process":
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(int(resource.name), signal.SIGKILL)
                os.waitpid(int(resource.name), 0)
    for resource in leaked:
        # Another's may have lost its owner meanwhile: only what is named like a test's goes.
        if resource.kind == "network namespace" and resource.name.startswith("p3"):
            subprocess.run(["ip", "netns", "delete", resource.name], check=False)


def _await_one(leaked: Resources, deadline: float) -> None:
    """Waits for the end of one process or thread, or a moment if there is nothing to wait for."""
    left = max(0.0, deadline - time.monotonic())
    names = {resource.name for resource in leaked if resource.kind == "process"}
    for name in names:
        with suppress(ProcessLookupError):
            _await_process(int(name), left)
        return
    names = {resource.name for resource in leaked if resource.kind == "thread"}
    for thread in threading.enumerate():
        if str(thread.native_id) in names:
            thread.join(left)
            return
    # The kernel tells nobody when the task of a joined thread is gone.
    time.sleep(0.005)


def _await_process(pid: int, seconds: float) -> None:
    descriptor = os.pidfd_open(pid)
    try:
        select.select([descriptor], [], [], seconds)
    finally:
        os.close(descriptor)


def _namespaces() -> Iterator[tuple[Resource, str]]:
    for name in cluster_names.every_namespace():
        if not _is_of_another(name):
            yield Resource("network namespace", name), name


def _is_of_another(namespace: str) -> bool:
    """Whether the name carries the id of another process that runs, or none: not a test's.

    This machine may be shared.
    """
    cluster = cluster_names.cluster_of(namespace)
    if cluster is not None:
        return cluster.owner.pid != os.getpid() and cluster.owner.is_alive()
    pid = next((int(part) for part in namespace.split("-") if part.isdigit()), None)
    return pid is None or (pid != os.getpid() and cluster_names.process_start(pid) is not None)


def _children() -> Iterator[tuple[Resource, str]]:
    for entry in _own():
        with suppress(FileNotFoundError, ProcessLookupError):
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
            yield Resource("process", entry.name), f"{entry.name}: {command.decode()}"


def _reap_ended(before: Resources) -> None:
    """Takes leave of children that ended, mostly orphans; not of those that a fixture waits for."""
    for entry in _own():
        if Resource("process", entry.name) not in before:
            with suppress(ChildProcessError):
                os.waitpid(int(entry.name), os.WNOHANG)


def _own() -> Iterator[Path]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(FileNotFoundError, ProcessLookupError):
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
                if int(parent) == os.getpid():
                    yield entry


def _threads(native_threads: bool) -> Iterator[tuple[Resource, str]]:
    names = {str(thread.native_id): thread.name for thread in threading.enumerate()}
    for entry in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):
            if entry.name in names:
                yield Resource("thread", entry.name), names[entry.name]
            elif native_threads:
                command = (entry / "comm").read_text().strip()
                yield Resource("thread", entry.name), f"{entry.name}, not Python's: {command}"


def _descriptors() -> Iterator[tuple[Resource, str]]:
    for entry in Path("/proc/self/fd").iterdir():
        if int(entry.name) <= 2:
            continue  # pytest puts its own in their place, and takes them away when interrupted
        with suppress(FileNotFoundError):  # the one that lists this folder
            text = f"{entry.name} -> {entry.readlink()}"
            yield Resource("file descriptor", text), text
