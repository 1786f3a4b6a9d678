"""Where a cgroup lies in the cgroup2 hierarchy, by /proc/self/mountinfo (proc_pid_mountinfo(5))."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from p3_agent.errors import AgentError
from p3_agent.mark import Cgroup


@dataclass(frozen=True, slots=True)
class Mount:
    """A cgroup2 mount: the `root` of the hierarchy that is seen at `point`."""

    device: int
    root: PurePosixPath
    point: Path


def find(name: Path) -> Cgroup:
    """The cgroup `name`: a directory, or as /proc/PID/cgroup and systemd write it.

    Raises AgentError when there is none, or when it cannot be matched on.
    """
    mounts = mounts_here()
    if not mounts:
        raise AgentError(
            "no cgroup2 is mounted here: mount it; where `ip netns exec` hides it, "
            "use `nsenter --net=/run/netns/NAME`"
        )
    written = [mount.point / str(name).lstrip("/") for mount in mounts]
    path = next((path for path in (name, *written) if path.is_dir()), None)
    if path is None:
        raise AgentError(f"there is no cgroup {name}: make it, or start what runs in it")
    return locate(path.resolve(), mounts)


def locate(path: Path, mounts: tuple[Mount, ...]) -> Cgroup:
    """What the directory `path` is in the hierarchy; AgentError when it is none, or the root."""
    seen = path.stat()
    for mount in mounts:
        if mount.device != seen.st_dev or not path.is_relative_to(mount.point):
            continue
        if ".." in mount.root.parts:
            raise AgentError(
                f"{path} lies outside of this process's cgroup namespace: run this on the host"
            )
        level = len(mount.root.parts) - 1 + len(path.relative_to(mount.point).parts)
        if level == 0:
            raise AgentError(f"{path} is the root of all cgroups: name one below it")
        return Cgroup(path, level, seen.st_ino)
    places = ", ".join(str(mount.point) for mount in mounts)
    raise AgentError(f"{path} is not in cgroup2 ({places}): name a directory below that")


def mounts_here() -> tuple[Mount, ...]:
    """The cgroup2 mounts that this process can reach, the latest first."""
    text = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
    return tuple(mount for mount in parse_mounts(text) if _is_reachable(mount))


def _is_reachable(mount: Mount) -> bool:
    """Whether no later mount hides it."""
    try:
        return mount.point.stat().st_dev == mount.device
    except OSError:
        return False


def parse_mounts(text: str) -> tuple[Mount, ...]:
    """The cgroup2 mounts in a mountinfo's text, the latest first: it hides those below."""
    return tuple(_mounts(text))[::-1]


def _mounts(text: str) -> Iterator[Mount]:
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        if after.partition(" ")[0] == "cgroup2":
            _, _, device, root, point, *_ = before.split(" ")
            major, minor = map(int, device.split(":"))
            yield Mount(os.makedev(major, minor), PurePosixPath(_plain(root)), Path(_plain(point)))


def _plain(field: str) -> str:
    """A field without the octal escapes of blank, tab, line end and backslash."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), field)
