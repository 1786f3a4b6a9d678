"""scripts/reproduce measures on a real cluster, in its smallest form, and goes on where it was."""

from __future__ import annotations

from pathlib import Path

from support.experiments import run

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
