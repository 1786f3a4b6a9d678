"""Temporary directories that carry their owner's name, so that a killed owner's are removed."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from p3_shaper.cluster_names import Owner, process_start

_NAME = re.compile(r"p3-(?P<pid>\d+)-(?P<started>\d+)-\w+")


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory for the block; what processes that were killed left behind goes first."""
    remove_stale(Path(tempfile.gettempdir()))
    pid = os.getpid()
    prefix = f"p3-{pid}-{process_start(pid)}-"
    with tempfile.TemporaryDirectory(prefix=prefix) as directory:
        yield Path(directory)


def remove_stale(where: Path) -> None:
    """Remove directories of ours in `where` whose owner no longer runs."""
    for entry in where.iterdir():
        match = _NAME.fullmatch(entry.name)
        if match is None or entry.is_symlink() or not _is_ours(entry):
            continue
        if not Owner(int(match["pid"]), int(match["started"])).is_alive():
            # Another demo may be sweeping too.
            shutil.rmtree(entry, ignore_errors=True)


def _is_ours(entry: Path) -> bool:
    try:
        return entry.stat().st_uid == os.geteuid()
    except FileNotFoundError:
        return False
