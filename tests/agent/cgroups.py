"""Cgroups of a test's own, and programs that run in them."""

import shlex
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from p3_agent.mark_cgroup import mounts_here


@dataclass(frozen=True)
class Group:
    """A cgroup2 directory."""

    path: Path

    def command(self, namespace: str, *argv: str) -> list[str]:
        """A command that runs in the cgroup and in the network namespace.

        `ip netns exec` would do for the namespace, but hides cgroups.
        """
        enter = f'echo $$ > {shlex.quote(str(self.path / "cgroup.procs"))} && exec "$@"'
        return ["sh", "-c", enter, "sh", *within(namespace), *argv]


def within(namespace: str) -> list[str]:
    """A prefix that enters a network namespace and leaves the mounts as they are."""
    return ["nsenter", f"--net=/run/netns/{namespace}"]


@contextmanager
def mounted() -> Iterator[Path]:
    """Where cgroup2 can be reached: where this machine has it, else a mount for the while."""
    if mounts := mounts_here():
        yield mounts[0].point
        return
    with tempfile.TemporaryDirectory(prefix="p3t-") as place, mounted_at(Path(place)):
        yield Path(place)


@contextmanager
def mounted_at(place: Path) -> Iterator[None]:
    """Mount cgroup2 at a directory."""
    subprocess.run(["mount", "-t", "cgroup2", "none", str(place)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(place)], check=True)


@contextmanager
def group(parent: Path, name: str) -> Iterator[Group]:
    """Make a cgroup; removed at the end if it is there."""
    path = parent / name
    path.mkdir()
    try:
        yield Group(path)
    finally:
        if path.is_dir():
            path.rmdir()
