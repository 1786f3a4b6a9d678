"""`--json FILE`: every number of a run, for programs to read."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec


def add_option(parser: argparse.ArgumentParser, default: str = "none") -> None:
    """The option itself; `default` says where the numbers go without it."""
    parser.add_argument("--json", type=Path, help=f"a file for every number ({default})")


def prepare(parser: argparse.ArgumentParser, path: Path | None) -> None:
    """See that `path` can be written to now, not after minutes; else SystemExit with status 2."""
    if path is None:
        return
    if path.is_dir():
        parser.error(f"--json {path}: a directory; name a file")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--json {path}: {error.filename}: {error.strerror}; choose another")


def write(path: Path | None, numbers: object) -> None:
    """Write `numbers` (structs of msgspec, lists, dicts) to `path`, and say so; OSError."""
    if path is not None:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(numbers), indent=1) + b"\n")
        print(f"\nwrote {path}")
