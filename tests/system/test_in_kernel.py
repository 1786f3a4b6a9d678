"""scripts/in-kernel, and tests that are sent to the kernel that it boots."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from support.second_kernel import IN_KERNEL

TESTS = Path(__file__).parents[1]
WITHOUT_UML = 'mount --bind /dev/null /usr/bin/linux.uml && exec "$@"'
"""In a mount namespace of its own: as on a machine where it is not installed."""

CONFTEST = """
from support import second_kernel

def pytest_configure(config):
    second_kernel.register(config)
"""
SENT = """
import os, pytest

@pytest.mark.second_kernel
@pytest.mark.parametrize("text", ["a::b c", "d\\ne"])
def test_there(text): assert os.environ["P3_IN_KERNEL"] == "uml"

@pytest.mark.second_kernel
def test_fails():
    three = 3
    assert 2 == three

@pytest.mark.lacks_kinds("bfifo", "htb")
def test_of_no_kernel(): ...

@pytest.mark.second_kernel
def test_ends_the_run(): os._exit(3)

@pytest.mark.second_kernel
def test_after_it(): ...

@pytest.mark.needs_kinds("bfifo", "htb", "link:veth")
def test_here(): assert "P3_IN_KERNEL" not in os.environ
"""


def run(*command: str, **options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **options}
    )


def outcomes(directory: Path, *within: str) -> dict[str, str]:
    """What a pytest says of the tests in `directory`: the words of a failure, "" of a success."""
    (directory / "conftest.py").write_text(CONFTEST)
    (directory / "pytest.ini").write_text("[pytest]\n")
    report = directory / "report.xml"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--junitxml={report}"]
    done = run(*within, *command, str(directory), PYTHONPATH=str(TESTS))
    assert done.returncode == 1, done.stdout + done.stderr
    cases = ET.parse(report).getroot().iter("testcase")
    return {case.attrib["name"]: "".join(item.text or "" for item in case) for case in cases}


def test_a_command_runs_there_with_this_directory_environment_and_arguments(tmp_path: Path) -> None:
    script = (
        'echo "$1,$WORD,$P3_IN_KERNEL"; pwd; tc qdisc add dev lo root prio; tc qdisc show dev lo;'
        f"ip -brief address show lo; echo kept >{tmp_path}/file; echo lost >/var/lost;"
        "echo said >&2; exit 7"
    )
    keep = ["-w", str(tmp_path), "--"]
    done = run(str(IN_KERNEL), *keep, "sh", "-c", script, "sh", "an 'argument", WORD="a b")
    first, second, third, fourth = done.stdout.splitlines()
    assert (first, second) == ("an 'argument,a b,uml", str(Path.cwd()))
    assert third.startswith("qdisc prio 8001: root refcnt 2 bands 3 priomap")
    assert fourth.split() == ["lo", "UNKNOWN", "127.0.0.1/8", "::1/128"]
    assert (done.returncode, done.stderr) == (7, "said\n")
    assert (tmp_path / "file").read_text() == "kept\n"
    assert not Path("/var/lost").exists()


@pytest.mark.parametrize(
    ("how", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)]
)
def test_whatever_ends_it_nothing_is_left(how: signal.Signals, status: int) -> None:
    """Its processes would come to this one, as orphans; its memory is in no place but theirs."""
    command = [str(IN_KERNEL), "sh", "-c", "echo up; sleep 1000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"up\n"
        process.send_signal(how)
        assert process.stdout.read() == b""  # when the last process that holds it is gone
        assert process.stderr.read() == b""
        assert process.wait() == status


def test_misuse_and_a_missing_kernel_are_said_in_one_line() -> None:
    for arguments, words in (
        ([], "no command was given"),
        (["-x", "true"], "no option -x is known"),
        (["-m", "3", "true"], "3 is no size"),
        (["-w", "/", "true"], "/ is no directory that can be kept"),
    ):
        done = run(str(IN_KERNEL), *arguments)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert words in done.stderr
    done = run("env", "--chdir=/run", str(IN_KERNEL), "true")
    assert (done.returncode, done.stderr.count("below /run")) == (2, 1)
    done = run("unshare", "--mount", "sh", "-c", WITHOUT_UML, "sh", str(IN_KERNEL), "true")
    assert done.returncode == 125
    assert "run scripts/setup" in done.stderr


def test_what_became_of_a_test_that_was_sent_there_is_reported(tmp_path: Path) -> None:
    (tmp_path / "test_sent.py").write_text(SENT)
    said = outcomes(tmp_path)
    assert list(said) == [
        "test_here",
        "test_there[a::b c]",
        "test_there[d\\ne]",
        "test_fails",
        "test_of_no_kernel",
        "test_ends_the_run",
        "test_after_it",
    ]
    assert [name for name, words in said.items() if not words] == list(said)[:3]
    assert "E       assert 2 == 3" in said["test_fails"]
    assert "no kernel for this test: " in said["test_of_no_kernel"]
    for name in ("test_ends_the_run", "test_after_it"):
        assert "by scripts/in-kernel, it did not end: it ended with 3" in said[name]


def test_without_the_second_kernel_its_tests_fail_and_say_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "test_sent.py").write_text(SENT)
    said = outcomes(tmp_path, "unshare", "--mount", "sh", "-c", WITHOUT_UML, "sh")
    assert [name for name, words in said.items() if not words] == ["test_here"]
    assert all("run scripts/setup" in words for name, words in said.items() if name != "test_here")


BESIDE = """
import os, pytest

pytestmark = pytest.mark.calm

def test_there(tmp_path): assert os.getppid() == int(os.environ["STARTED"])

def test_fails():
    three = 3
    assert 2 == three

def test_ends_the_run(): os._exit(3)

def test_after_it(): ...
"""
FIRST = """
import os, pytest

os.environ["STARTED"] = str(os.getpid())

@pytest.mark.calm
def test_calm(): ...

def test_that_measures(): ...
"""


def test_what_became_of_a_test_that_ran_beside_is_reported(tmp_path: Path) -> None:
    (tmp_path / "test_first.py").write_text(FIRST)
    (tmp_path / "test_second.py").write_text(BESIDE)
    said = outcomes(tmp_path)
    assert list(said) == [
        "test_that_measures",
        "test_calm",
        "test_there",
        "test_fails",
        "test_ends_the_run",
        "test_after_it",
    ]
    assert [name for name, words in said.items() if not words] == list(said)[:3]
    assert "E       assert 2 == 3" in said["test_fails"]
    for name in ("test_ends_the_run", "test_after_it"):
        assert "in a pytest beside the one that was started it did not end" in said[name]
