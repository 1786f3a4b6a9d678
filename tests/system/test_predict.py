"""From a model to an answer: `p3 profile`, `p3 predict`, scripts/simulate."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from experiments import simulate
from experiments.emulation import paper_profiles
from p3.cli import main
from p3.profile import read_profile

pytestmark = pytest.mark.native_threads

MODEL = """
from torch import nn
import torch

def network():
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))

def trained():
    model = network()
    batch, wanted = torch.rand(16, 8), torch.rand(16, 4)
    return model, lambda: nn.functional.mse_loss(model(batch), wanted)

def nothing():
    return nn.ReLU()
"""


@pytest.fixture
def model(tmp_path: Path) -> Iterator[str]:
    """Where a user's model is."""
    path = tmp_path / "users_model.py"
    path.write_text(MODEL, encoding="utf-8")
    yield str(path)
    sys.modules.pop("users_model", None)
    sys.path[:] = [entry for entry in sys.path if entry != str(tmp_path)]


@pytest.mark.parametrize(
    ("function", "options"), [("network", ["--input", "16x8"]), ("trained", ["--samples", "16"])]
)
def test_a_users_model_is_profiled(
    model: str, function: str, options: list[str], tmp_path: Path
) -> None:
    out = tmp_path / "profile.json"
    asked = ["profile", f"{model}:{function}", *options, "--iterations", "2", "--out", str(out)]
    assert main(asked) == 0
    profile = read_profile(out)
    assert [layer.numels for layer in profile.layers] == [(256, 32), (128, 4)]
    assert profile.samples == 16
    assert profile.payload_bytes == 4 * 420
    assert profile.compute_s > 0


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["profile", "{model}:network"], 2, "--samples"),
        (["profile", "{model}:network", "--samples", "4"], 2, "name its --input"),
        (["profile", "{model}:network", "--input", "4xx"], 2, "sizes joined by x"),
        (["profile", "{model}:absent", "--samples", "4"], 1, "absent"),
        (["profile", "{model}", "--samples", "4"], 2, "FILE.py:FUNCTION"),
        (["profile", "{model}:nothing", "--input", "4x4"], 1, "nothing to send"),
        (["predict", "{model}", "--nodes", "4", "--rate", "1gbit"], 1, "is no profile"),
        (["predict", "/absent", "--nodes", "4", "--rate", "1gbit"], 1, "make a profile with"),
    ],
)
def test_what_makes_no_sense_is_one_sentence(
    model: str,
    arguments: list[str],
    status: int,
    words: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([argument.format(model=model) for argument in arguments]) == status
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("arguments", [["--nodes", "0"], ["--goodput", "2gbit"], ["--rack", "-1"]])
def test_a_network_that_cannot_be_is_refused(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "vgg19.json"
    paper_profiles()["vgg19"].write(path)
    assert main(["predict", str(path), "--nodes", "4", "--rate", "1gbit", *arguments]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("rate", "answer"), [("15gbit", "P3 would help: "), ("10tbit", "P3 would not help")]
)
def test_the_answer_in_plain_words(
    rate: str, answer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "vgg19.json"
    paper_profiles()["vgg19"].write(path)
    assert main(["predict", str(path), "--nodes", "4", "--rate", rate]) == 0
    out = capsys.readouterr().out
    assert answer in out
    assert "no synchronous system is below" in out
    assert main(["predict", str(path), "--nodes", "4", "--rate", rate, "--json"]) == 0
    assert msgspec.json.decode(capsys.readouterr().out)["ddp"]["iteration_s"] > 0


def test_every_system_is_predicted_on_every_network(tmp_path: Path) -> None:
    file = tmp_path / "numbers.json"
    argv = ["resnet50_v1", "--nodes", "2", "64", "--rate", "4gbit", "--json", str(file)]
    done = subprocess.run(
        [sys.executable, "-m", "experiments.simulate", *argv],
        cwd=Path(simulate.__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = msgspec.json.decode(file.read_bytes(), type=list[simulate.Row])
    names = {row.system for row in rows}
    assert {"ddp", "ddp-best", "baseline", "slicing", "p3-static", "asgd", "p3-groups"} <= names
    assert len(rows) == 2 * len(names)
    assert all(row.iteration_s >= row.bound_s for row in rows if row.system != "asgd")


def test_ways_to_cut_bands_are_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "numbers.json"
    argv = ["sockeye", "--cuts", "--nodes", "4", "--rate", "4gbit", "--json", str(file)]
    monkeypatch.setattr(sys, "argv", ["simulate", *argv, "--systems", "ddp", "p3-groups"])
    assert simulate.main() == 0
    assert "P3, groups, equal-bytes" in capsys.readouterr().out
    rows = msgspec.json.decode(file.read_bytes(), type=list[simulate.Row])
    assert {row.system for row in rows} == {"p3-groups"}
    seconds = {row.bands: row.iteration_s for row in rows}
    assert seconds["optimised"] == min(seconds.values()) < seconds["one-band"]
