"""Namespace names of test clusters: who owns them, and which of them a dead owner left behind.

A name carries its owner's process id and that process's start time, so that a leftover is told
from a cluster in use, also after the kernel has given the process id to somebody else.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

NAMESPACES = Path("/run/netns")
_NAME = re.compile(
    r"(?P<prefix>.+)-(?P<pid>\d+)-(?P<started>\d+)-(?P<number>\d+)-(?P<role>switch|node\d+)"
)


@dataclass(frozen=True, slots=True)
class Owner:
    """One process; `started` is in clock ticks since boot (field 22 of proc_pid_stat(5))."""

    pid: int
    started: int

    def is_alive(self) -> bool:
        """Whether this very process still runs (a zombie does not)."""
        return process_start(self.pid) == self.started


@dataclass(frozen=True, slots=True)
class ClusterName:
    """What the names of one cluster's namespaces begin with."""

    prefix: str
    owner: Owner
    number: int

    def __str__(self) -> str:
        return f"{self.prefix}-{self.owner.pid}-{self.owner.started}-{self.number}"

    def namespace(self, role: str) -> str:
        """The namespace of one part: `switch`, `node0`, `node1`, …"""
        return f"{self}-{role}"


def process_start(pid: int) -> int | None:
    """Start of a process in clock ticks since boot; None if it is gone or a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field, the command's name, may hold spaces and brackets itself.
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def cluster_of(namespace: str) -> ClusterName | None:
    """The cluster that a namespace belongs to, by its name; None if it is no cluster's."""
    match = _NAME.fullmatch(namespace)
    if match is None:
        return None
    owner = Owner(int(match["pid"]), int(match["started"]))
    return ClusterName(match["prefix"], owner, int(match["number"]))


def existing(cluster: ClusterName) -> list[str]:
    """The namespaces of one cluster that exist now."""
    return [name for name in every_namespace() if cluster_of(name) == cluster]


def stale(prefix: str) -> list[ClusterName]:
    """Clusters named with `prefix` whose owner no longer runs."""
    clusters = {cluster for name in every_namespace() if (cluster := cluster_of(name)) is not None}
    return sorted(
        (each for each in clusters if each.prefix == prefix and not each.owner.is_alive()), key=str
    )


def every_namespace() -> list[str]:
    """Every named network namespace of this machine."""
    try:
        return sorted(entry.name for entry in NAMESPACES.iterdir())
    except FileNotFoundError:  # no namespace was ever made on this machine
        return []
