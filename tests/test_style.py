"""The linters, run as tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.calm

ROOT = Path(__file__).parents[1]
FOLDERS = ["shaper", "agent", "integrations", "scripts", "tests"]


def python_commands() -> list[str]:
    """Commands in scripts/ without a suffix that are Python programs."""
    return [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "scripts").iterdir())
        if path.is_file()
        and not path.suffix
        and "python" in path.read_text(encoding="utf-8").partition("\n")[0]
    ]


@pytest.mark.parametrize(
    "command",
    [["ruff", "check"], ["ruff", "format", "--check", "--diff"], ["mypy"]],
    ids=["ruff-check", "ruff-format", "mypy"],
)
def test_source_is_clean(command: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *command, *FOLDERS, *python_commands()],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        pytest.fail(done.stdout + done.stderr, pytrace=False)
