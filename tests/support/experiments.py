"""Runs a module of scripts/experiments as its command does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPTS = Path(__file__).parents[2] / "scripts"


def run(module: str, *arguments: str | Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", f"experiments.{module}", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SCRIPTS)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
