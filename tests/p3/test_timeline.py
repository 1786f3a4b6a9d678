"""The timeline's bounds and lanes, without any training."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from p3.timeline import Span, Timeline, file_for, lanes


def span(beginning: int, end: int, name: str = "") -> Span:
    return Span(0, name, [("", beginning)], end, {})


def test_overlapping_spans_have_lanes_of_their_own_and_as_few_as_will_do() -> None:
    spans = [span(0, 10), span(1, 3), span(3, 4), span(2, 5), span(10, 11), span(5, 12)]
    found = {(one.phases[0][1], one.end): lane for lane, one in lanes(spans)}
    assert found == {(0, 10): 1, (1, 3): 2, (2, 5): 3, (3, 4): 2, (5, 12): 2, (10, 11): 1}


def test_what_is_too_much_is_forgotten_from_the_oldest_on_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    timeline = Timeline(tmp_path / "out.json", 3, max_spans=4)
    timeline.name(0, "band 0")
    for number in range(10):
        timeline.add(span(number, number + 1, f"span {number}"))
    timeline.write()
    written = json.loads((tmp_path / "out.json").read_bytes())
    assert written["otherData"] == {"rank": 3, "forgotten": 6}
    names = [event["name"] for event in written["traceEvents"] if event["ph"] == "X"]
    assert names == ["span 6", "span 7", "span 8", "span 9"]
    assert "oldest 6 spans" in capsys.readouterr().err


def test_only_several_ranks_have_their_number_in_the_name() -> None:
    assert file_for("a/out.json", 0, 1) == Path("a/out.json")
    assert file_for("a/out.json", 2, 4) == Path("a/out.2.json")
    assert file_for("out", 2, 4) == Path("out.2")
