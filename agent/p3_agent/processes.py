"""Which process holds a socket: by the inode that /proc/PID/fd shows (proc_pid_fd(5))."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Process:
    """A process as /proc names it."""

    pid: int
    command: str


@dataclass(frozen=True, slots=True)
class Holders:
    """The process that holds each socket, by inode; of several, the one with the lowest id.

    `complete` is False when some processes could not be looked into, for lack of root.
    """

    by_inode: dict[int, Process]
    complete: bool


def holders(inodes: Iterable[int]) -> Holders:
    """Who holds the sockets `inodes`; processes that end meanwhile are left out."""
    wanted = {f"socket:[{inode}]": inode for inode in inodes if inode}
    found: dict[int, Process] = {}
    complete = True
    for pid in process_ids() if wanted else ():
        try:
            held = {wanted[target] for target in _open_files(pid) if target in wanted}
        except PermissionError:
            complete = False
            continue
        for inode in held - found.keys():
            found[inode] = Process(pid, command_of(pid))
    return Holders(found, complete)


def process_ids() -> list[int]:
    """Every process now."""
    return sorted(int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit())


def command_of(pid: int) -> str:
    """The kernel's name for a process, 15 bytes at most; "?" if it has ended.

    A process chooses its name, so that a terminal's control characters may be in it: each is "?".
    """
    with suppress(OSError):
        name = (_PROC / str(pid) / "comm").read_text("utf-8", "replace").removesuffix("\n")
        return "".join(sign if sign.isprintable() else "?" for sign in name)
    return "?"


def _open_files(pid: int) -> Iterator[str]:
    try:
        entries = list((_PROC / str(pid) / "fd").iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return
    for entry in entries:
        with suppress(FileNotFoundError, ProcessLookupError):
            yield str(entry.readlink())
