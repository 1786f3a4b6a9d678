"""scripts/reproduce measures on a real cluster, in its smallest form, and goes on where it was."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import msgspec
import pytest
from matplotlib.figure import Figure

from experiments.comparison import LOSS_TOLERANCE
from experiments.outcome import largest_difference
from experiments.reproduce import cli
from experiments.reproduce.fleet import Fleet
from experiments.reproduce.lessons import Learned

pytestmark = pytest.mark.native_threads

ARGUMENTS = (
    *("fig7", "--quick", "--models", "resnet50_v1", "--rates", "8", "--systems", "ddp", "p3"),
    *("--scale", "50", "--slow", "1", "--iterations", "3", "--repeat", "1"),
)


@pytest.fixture(scope="module", autouse=True)
def _fonts() -> None:
    """matplotlib never closes a font that it has used."""
    figure = Figure()
    figure.suptitle("any")
    figure.savefig(io.BytesIO())


def reproduce(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> int:
    monkeypatch.setattr(sys, "argv", ["reproduce", *map(str, arguments)])
    return cli.main()


def test_reproduce(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reproduce(monkeypatch, *ARGUMENTS, "--out", tmp_path) == 0
    names = {Path(line).name for line in capsys.readouterr().out.splitlines()}
    pictures = {f"fig7-256k.{ending}" for ending in ("png", "csv", "json")}
    assert names == {*pictures, "report.html", "results.md"}
    kept = (tmp_path / "measurements.jsonl").read_bytes()
    assert kept.count(b"\n") == 2
    assert "data:image/png;base64," in (tmp_path / "report.html").read_text()
    assert "p3 of the bound" in (tmp_path / "results.md").read_text()
    monkeypatch.delattr(Fleet, "__enter__")  # nothing is left to measure
    assert reproduce(monkeypatch, *ARGUMENTS, "--out", tmp_path) == 0
    assert (tmp_path / "measurements.jsonl").read_bytes() == kept


def test_accuracy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("accuracy", "--iterations", "3", "--out", tmp_path, "--systems")
    assert reproduce(monkeypatch, *asked, "ddp", "p3-groups") == 0
    assert (tmp_path / "accuracy.txt").read_text() in capsys.readouterr().out
    found = msgspec.json.decode((tmp_path / "accuracy.json").read_bytes(), type=list[Learned])
    assert [one.lesson.system for one in found] == ["single", "ddp", "p3-groups"]
    single, ddp, p3 = found
    for one in (ddp, p3):
        assert one.identical
        assert largest_difference(single.losses, one.losses) < LOSS_TOLERANCE
    assert all(len(one.accuracies) == 3 for one in found)
    monkeypatch.delattr(Fleet, "__enter__")  # nothing is left to train
    assert reproduce(monkeypatch, *asked, "ddp") == 0
    again = msgspec.json.decode((tmp_path / "accuracy.json").read_bytes(), type=list[Learned])
    assert again == [single, ddp]
