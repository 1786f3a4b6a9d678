"""scripts/setup refuses what it cannot mend, in one line that says what to do, status 2."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

SETUP = Path(__file__).parents[2] / "scripts" / "setup"

# May read the checkout, wherever it is, but is not root.
NOBODY = [
    "setpriv",
    "--reuid=65534",
    "--clear-groups",
    "--inh-caps=+dac_read_search",
    "--ambient-caps=+dac_read_search",
]


def without(capability: str) -> list[str]:
    return ["setpriv", f"--bounding-set=-{capability}", f"--inh-caps=-{capability}"]


def with_file(path: str, content: Path) -> list[str]:
    """Runs a command that sees `content` in place of the system's file `path`."""
    script = f'mount --bind {shlex.quote(str(content))} {path} && exec "$@"'
    return ["unshare", "--mount", "sh", "-c", script, "sh"]


def refusal(within: list[str]) -> str:
    command = [*within, str(SETUP)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    return done.stderr


def test_refuses_without_root() -> None:
    assert refusal(NOBODY).startswith("setup: not root: ")
    assert "run as root (sudo " in refusal(NOBODY)


def test_names_the_command_that_was_called() -> None:
    test = SETUP.parent / "test"
    done = subprocess.run([*NOBODY, str(test)], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"run as root (sudo {test})" in done.stderr


def test_refuses_another_system(tmp_path: Path) -> None:
    other = tmp_path / "os-release"
    other.write_text('ID=fedora\nID_LIKE="rhel"\n', encoding="utf-8")
    line = refusal(with_file("/etc/os-release", other))
    assert "this is fedora, not Debian or Ubuntu" in line


@pytest.mark.parametrize("capability", ["sys_admin", "net_admin"])
def test_refuses_without_the_right_to_make_namespaces(capability: str) -> None:
    assert "run on the host or in a privileged container" in refusal(without(capability))
