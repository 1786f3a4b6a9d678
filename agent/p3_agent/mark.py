"""Marking for programs that do not mark themselves: the nftables commands that do it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from os.path import relpath
from pathlib import Path

from p3_agent.errors import AgentError, UsageError
from p3_shaper.bands import Band, BandTable

_NFT_ROOT = "/sys/fs/cgroup"
"""Where libnftables looks for a cgroup's path (its src/datatype.c), wherever cgroup2 is mounted."""
_MANGLE = -150


@dataclass(frozen=True, slots=True)
class Cgroup:
    """A cgroup2 directory.

    `level` counts the directories from the hierarchy's root, whose own level is 0; `identity` is
    the inode number, which is what the kernel compares and which a cgroup that is removed and made
    again does not keep.
    """

    path: Path
    level: int
    identity: int


@dataclass(frozen=True, slots=True)
class Mark:
    """One band's mark on what the sockets of one cgroup, and of those below it, send.

    Raises UsageError when the table has no such band, AgentError for a path that nftables cannot
    write.
    """

    cgroup: Cgroup
    table: BandTable
    index: int

    def __post_init__(self) -> None:
        if not 0 <= self.index < len(self.table):
            raise UsageError(
                f"there is no band {self.index}: choose --band 0 to {len(self.table) - 1}"
            )
        if not {'"', "\n"}.isdisjoint(str(self.cgroup.path)):
            raise AgentError(
                f"{self.cgroup.path}: nftables cannot write a path with a quote or a line's end: "
                "rename the cgroup"
            )

    @property
    def band(self) -> Band:
        """The band whose DSCP is set."""
        return self.table.bands[self.index]

    @property
    def name(self) -> str:
        """The nftables table's name: one for each cgroup, so that two marks cannot contend."""
        return f"p3_agent_mark_{self.cgroup.identity}"

    def create(self) -> str:
        """The table. `owner`: the kernel removes it with the netlink socket that made it."""
        return f"create table inet {self.name} {{ flags owner; }}"

    def fill(self) -> str:
        """The chain and its rules.

        Type `filter`, not `route`: a mark is no reason to look up the route again. The hook lies
        before the qdisc, which so sees the mark. What carries a band's mark already keeps it; with
        the deeper cgroup's chain first, its band wins.
        """
        priority = _MANGLE - self.cgroup.level
        path = relpath(self.cgroup.path, _NFT_ROOT)
        match = f'socket cgroupv2 level {self.cgroup.level} "{path}"'
        marks = ", ".join(map(str, self.table.dscps))
        chain = f"inet {self.name} output"
        dscp = self.band.dscp
        lines = [f"add chain {chain} {{ type filter hook output priority {priority}; }}"]
        lines += [
            f"add rule {chain} {match} {family} dscp != {{ {marks} }} {family} dscp set {dscp}"
            for family in ("ip", "ip6")
        ]
        return "\n".join(lines)

    def remove(self) -> str:
        """Undo `create` and `fill`."""
        return f"delete table inet {self.name}"

    def describe(self) -> str:
        """In words: `DSCP 41 (band 0) on what sockets of /sys/fs/cgroup/x send`."""
        return (
            f"DSCP {self.band.dscp} (band {self.index}) on what sockets of {self.cgroup.path} send"
        )
