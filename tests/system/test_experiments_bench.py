"""The benchmarks run through, in their smallest form."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from support.experiments import SCRIPTS, run

from experiments import bench_shaper
from experiments.bench_ranks import ENGINES
from experiments.bench_shaper import Row
from experiments.bench_transport import Numbers
from experiments.emulated_report import SettingRounds
from experiments.training_costs import SYSTEMS
from experiments.transports import NAMES
from p3_shaper.bands import default_table


def test_bench_emulated(tmp_path: Path) -> None:
    file = tmp_path / "numbers.json"
    settings = ("--settings", "resnet50@1gbit", "--nodes", "2", "--rounds", "1")
    systems = ("--systems", "ddp", "ps", "--iterations", "4")
    out = run("bench_emulated", *settings, *systems, "--logs", tmp_path, "--json", file)
    (setting,) = msgspec.json.decode(file.read_bytes(), type=list[SettingRounds])
    assert list(setting.systems) == ["ddp", "ps"]
    assert setting.bound_s == pytest.approx(0.3)
    for system in setting.systems.values():
        assert system.share_of_bound > 0
        assert system.title in out


def test_bench_transport(tmp_path: Path) -> None:
    file = tmp_path / "numbers.json"
    out = run(
        *("bench_transport", "--rounds", "1", "--megabytes", "4"),
        *("--logs", tmp_path, "--json", file),
    )
    found = msgspec.json.decode(file.read_bytes(), type=Numbers)
    assert tuple(found.transports) == NAMES
    for transport in found.transports.values():
        assert transport.gigabytes_per_s > 0
        assert transport.cpu_s_per_gb > 0
        assert transport.title in out
    assert tuple(found.training) == SYSTEMS
    for system in found.training.values():
        assert system.iteration_s > 0
        assert system.longest_gil_wait_s > 0
        assert system.title in out


def test_bench_ranks() -> None:
    """The counts that docs/engines.md states."""
    lines = run("bench_ranks", "--ranks", "3").splitlines()[-2:]
    for line, engine in zip(lines, ENGINES, strict=True):
        name, *numbers, _, alike = line.split()
        ranks, bands, threads, sockets, left = map(int, numbers)
        assert (name, ranks, left, alike) == (engine, 3, 0, "yes")
        assert 1 < bands <= len(default_table())
        if engine == "groups":
            assert (threads, sockets) == (3 + 4 * bands, (bands + 2) * 2 + 1)
        else:
            assert threads == 2
            assert sockets <= 2 * bands * 2


def test_bench_shaper(tmp_path: Path) -> None:
    file = tmp_path / "numbers.json"
    out = run(
        "bench_shaper", "--rounds", "1", "--seconds", "1", "--rates", "50mbit", "--json", file
    )
    (row,) = msgspec.json.decode(file.read_bytes(), type=list[Row])
    assert row.asked == 50_000_000
    assert 0 <= row.leak < 0.5  # 0 was seen: the lower band may get nothing in a second
    assert 0 < row.backlogged <= 1
    assert f"{row.rate / row.asked:.1%}" in out
    assert f"{row.leak:.2%}" in out


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_measured(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for path, words in (
        (SCRIPTS, "a directory; name a file"),
        (Path(__file__, "x"), "File exists"),
    ):
        with pytest.raises(SystemExit, match="2"):
            bench_shaper.parse(["--json", str(path)])
        assert words in capsys.readouterr().err
