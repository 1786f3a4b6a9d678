"""scripts/reproduce measures on a real cluster, in its smallest form, and goes on where it was."""

from __future__ import annotations

from pathlib import Path

import msgspec
from support.experiments import run

from experiments.comparison import LOSS_TOLERANCE
from experiments.outcome import largest_difference
from experiments.reproduce.lessons import Learned

ARGUMENTS = (
    *("fig7", "--quick", "--models", "resnet50_v1", "--rates", "8", "--systems", "ddp", "p3"),
    *("--scale", "50", "--iterations", "3", "--repeat", "1"),
)


def test_reproduce(tmp_path: Path) -> None:
    out = run("reproduce", *ARGUMENTS, "--out", tmp_path)
    names = {Path(line).name for line in out.splitlines()}
    pictures = {f"fig7-256k.{ending}" for ending in ("png", "csv", "json")}
    assert names == {*pictures, "report.html", "results.md"}
    kept = (tmp_path / "measurements.jsonl").read_bytes()
    assert kept.count(b"\n") == 2
    assert "data:image/png;base64," in (tmp_path / "report.html").read_text()
    assert "p3 of the bound" in (tmp_path / "results.md").read_text()
    run("reproduce", *ARGUMENTS, "--out", tmp_path)
    assert (tmp_path / "measurements.jsonl").read_bytes() == kept


def test_accuracy(tmp_path: Path) -> None:
    systems = ("--systems", "ddp", "p3-groups", "asgd", "--iterations", "4")
    out = run("reproduce", "accuracy", *systems, "--out", tmp_path)
    assert (tmp_path / "accuracy.txt").read_text() in out
    found = msgspec.json.decode((tmp_path / "accuracy.json").read_bytes(), type=list[Learned])
    assert [one.lesson.system for one in found] == ["single", "ddp", "p3-groups", "asgd"]
    single, ddp, p3, _ = found
    for one in (ddp, p3):
        assert one.identical
        assert largest_difference(single.losses, one.losses) < LOSS_TOLERANCE
    assert all(len(one.accuracies) == 4 for one in found)
