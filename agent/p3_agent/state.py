"""What survives a crash: the interface's original queueing, saved before the first change.

One file an interface, named by boot id, namespace inode, interface index and MAC, so that it is
never replayed on another interface or after a reboot (which resets qdiscs by itself). Written to
a temporary file, fsynced and renamed: it is there whole, or not at all.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from p3_agent.errors import AgentError


@dataclass(frozen=True, slots=True)
class Identity:
    """Which interface, of which namespace, in which boot."""

    boot: str
    namespace: int
    index: int
    mac: str

    @classmethod
    def here(cls, index: int, mac: str) -> Identity:
        """An interface of this process's network namespace."""
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        return cls(boot, Path("/proc/self/ns/net").stat().st_ino, index, mac)

    @property
    def key(self) -> str:
        """A file name."""
        return f"{self.boot}.{self.namespace}.{self.index}.{self.mac.replace(':', '') or 'nomac'}"


class Saved(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A state file's content: `snapshot` is `p3_shaper.netlink.Snapshot.to_bytes()`.

    `restoring` is set before the original is put back piece by piece: when that is cut short,
    what is at the root is a part of the original and not somebody's new qdisc.
    """

    device: str
    snapshot: bytes
    restoring: bool = False
    version: int = 1


class StateStore:
    """The state directory; made when first written to. Every failure is an AgentError."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def path(self, identity: Identity) -> Path:
        """Where an interface's original is kept."""
        return self.directory / f"{identity.key}.json"

    def load(self, identity: Identity) -> Saved | None:
        """What an agent that did not end properly left behind, or None."""
        path = self.path(identity)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise AgentError(
                f"cannot read {path}: {error.strerror}; run as root, or choose another --state-dir"
            ) from error
        try:
            saved = msgspec.json.decode(data, type=Saved)
        except msgspec.MsgspecError as error:
            raise AgentError(_damaged(path, str(error))) from error
        if saved.version != 1:
            raise AgentError(_damaged(path, f"version {saved.version}"))
        return saved

    def save(self, identity: Identity, saved: Saved) -> None:
        """Have `saved` on the disk when this returns; nothing is there if it raises."""
        path = self.path(identity)
        temporary = _temporary(path)
        try:
            self._make()
            try:
                _write_synced(temporary, msgspec.json.encode(saved))
                temporary.rename(path)
            except OSError:
                temporary.unlink(missing_ok=True)
                raise
            _sync_directory(self.directory)
        except OSError as error:
            raise AgentError(
                f"cannot save the original queueing in {self.directory}: {error.strerror}; "
                "free space there or choose another --state-dir; nothing was changed"
            ) from error

    def remove(self, identity: Identity) -> None:
        """Forget an interface whose original is back in place, and what a cut short save left."""
        path = self.path(identity)
        try:
            path.unlink(missing_ok=True)
            _temporary(path).unlink(missing_ok=True)
        except OSError as error:
            raise AgentError(f"cannot remove {path}: {error.strerror}; remove it") from error

    def sweep(self, boot: str) -> None:
        """Remove what earlier boots left: their qdiscs went with them."""
        for path in (*self.directory.glob("*.json"), *self.directory.glob("*.tmp")):
            if not path.name.startswith(f"{boot}."):
                with suppress(OSError):  # it is never read; the next agent tries again
                    path.unlink(missing_ok=True)

    def _make(self) -> None:
        self.directory.mkdir(mode=0o755, parents=True, exist_ok=True)


def _temporary(path: Path) -> Path:
    return path.with_suffix(".tmp")


def _write_synced(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _damaged(path: Path, what: str) -> str:
    return (
        f"the saved original {path} cannot be used ({what}); look at `tc qdisc show`, "
        "put the interface right by hand, and remove the file"
    )
