"""A model of 10,000 tiny parameters, and one tensor of 400 MB."""

from __future__ import annotations

from support.ranks import Ranks

ENGINES = ["groups", "ps"]
TOLERANCE = 2e-5


def test_ten_thousand_parameters_equal_one_process(pair: Ranks) -> None:
    found = [result[engine] for result in pair.run("many", ENGINES) for engine in ENGINES]
    assert len({one["digest"] for one in found}) == 1
    assert all(one["distance"] < TOLERANCE for one in found)


def test_a_tensor_of_400_mb_takes_little_more_memory_than_under_ddp(pair: Ranks) -> None:
    theirs = pair.run("large", "ddp")
    for engine in ENGINES:
        for ours, ddp in zip(pair.run("large", engine), theirs, strict=True):
            # Averages of 1 and 2, then of 2 and 3.
            assert ours["least"] == ours["most"] == ddp["most"] == -1.5 - 2.5
            assert ours["held"] < ddp["held"] + 0.6
