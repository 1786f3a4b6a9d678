"""scripts/demo: the main job, end to end, and its ends before time."""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from experiments.comparison import Numbers
from experiments.scratch import remove_stale, scratch
from p3_shaper.cluster import clear_stale

SCRIPTS = Path(__file__).parents[2] / "scripts"


@contextmanager
def demo(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The demo at work, with pipes for its output; killed at the end if it is still there."""
    process = subprocess.Popen(
        [sys.executable, "-m", "experiments.demo", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SCRIPTS)},
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def finish(*arguments: str) -> tuple[int, str, str]:
    with demo(*arguments) as process:
        out, err = process.communicate()
    return process.returncode, out, err


def test_quick_demo(tmp_path: Path) -> None:
    file = tmp_path / "numbers.json"
    status, out, err = finish("--quick", "--out", str(tmp_path / "out"), "--json", str(file))
    assert status == 0, err
    numbers = msgspec.json.decode(file.read_bytes(), type=Numbers)
    assert list(numbers.systems) == ["ddp", "p3_without_agent", "p3"]
    for system in numbers.systems.values():
        for value in (system.iteration_s, system.images_per_s, system.share_of_bound):
            assert math.isfinite(value)
            assert value > 0
        assert system.loss == pytest.approx(numbers.systems["ddp"].loss, rel=1e-3)
        assert 0.2 < system.accuracy <= 1
        # What every synchronous system has to send, and little more.
        needed = 2 * 3 / 4 * 4 * numbers.parameters * len(system.losses) / 1e6
        assert needed < system.megabytes_sent < 1.2 * needed
    assert numbers.loss_curves_agree
    assert numbers.ranks_identical
    assert numbers.runs_identical
    assert (tmp_path / "out" / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert "P3 with agents against DDP: " in out
    assert "the kernel's bands against none: " in out
    assert "iteration 14 of 14" in err


LONG = ("--nodes", "2", "--model", "small", "--iterations", "10000")


def read_until(process: subprocess.Popen[str], text: str) -> None:
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if text in line:
            return
    pytest.fail(f"the demo ended without {text!r}:\n{''.join(said)}", pytrace=False)


def descendants(pid: int) -> Iterator[int]:
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, children.read_text().split()):
            yield child
            yield from descendants(child)


def trainers(process: subprocess.Popen[str]) -> list[int]:
    """The processes that torchrun started on the nodes."""
    found = []
    for pid in descendants(process.pid):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if b"experiments.train" in words and b"torch.distributed.run" not in words:
            found.append(pid)
    return found


def test_a_trainer_killed_in_the_middle(tmp_path: Path) -> None:
    with demo(*LONG, "--out", str(tmp_path)) as process:
        read_until(process, "joining the other nodes")
        victim = trainers(process)[0]
        os.kill(victim, signal.SIGKILL)
        out, err = process.communicate()
    assert process.returncode == 1
    assert out == ""
    killed = rf"^demo: ddp on node [01] \(process {victim}\) was killed before it was done"
    assert re.search(killed, err, re.MULTILINE), err


def test_what_a_killed_one_left_goes_with_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratches = tmp_path / "scratches"
    scratches.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratches))
    with demo(*LONG, "--out", str(tmp_path)) as process:
        read_until(process, "joining the other nodes")
        process.kill()
    assert list(scratches.iterdir())
    clear_stale()
    remove_stale(scratches)
    assert not list(scratches.iterdir())


@pytest.mark.parametrize(("how", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 128 + 15)])
def test_ended_by_the_user_it_leaves_nothing(
    how: signal.Signals, status: int, tmp_path: Path
) -> None:
    with demo(*LONG, "--out", str(tmp_path)) as process:
        read_until(process, "joining the other nodes")
        process.send_signal(how)
        _, err = process.communicate()
    assert process.returncode == status
    assert "Traceback" not in err


def test_another_owner_s_directories_stay(tmp_path: Path) -> None:
    strange = [tmp_path / "p3-notes", tmp_path / f"p3-{os.getpid()}-x-y"]
    for directory in strange:
        directory.mkdir()
    with scratch() as used:
        remove_stale(used.parent)
        remove_stale(tmp_path)
        assert used.is_dir()
    assert not used.exists()
    assert all(directory.is_dir() for directory in strange)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--rate", "200"), "has no unit"),
        (("--iterations", "0"), "choose 2 or more"),
        (("--out", __file__), "File exists"),
        (("--json", "/"), "a directory; name a file"),
        (("--port-buffer", "much"), "much"),
        (("--nodes", "1"), "--nodes 1: "),
        (("--nodes", "400"), "at most 250"),
        (("--iterations", "1"), "--iterations 1: "),
        (("--model", "huge"), "huge"),
    ],
)
def test_options_that_make_no_sense(arguments: tuple[str, ...], words: str) -> None:
    status, out, err = finish(*arguments)
    assert status == 2
    assert out == ""
    assert words in err.splitlines()[-1]
