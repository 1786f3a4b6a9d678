"""The command lines that README and docs show can be typed as they stand."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from p3_agent import cli
from p3_agent.commands.options import settings
from p3_shaper import cli as shape
from p3_shaper.rates import parse_rate

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
STANDS_FOR = {"N": "1", "[--port": "--port", "ADDRESS]": "ADDRESS", "[--address": "--address"}
"""Placeholders and marks of what may be left out, and what a reader would type."""


def shown(program: str) -> list[tuple[str, list[str]]]:
    """Lines of `program` in the pages' blocks of code: where, and the words after its name."""
    return [
        (f"{page.name}: {line}", [STANDS_FOR.get(word, word.rstrip("]")) for word in words[1:]])
        for page in PAGES
        for line in re.findall(rf"^ *{program} .*$", page.read_text(), re.MULTILINE)
        if (words := shlex.split(line, comments=True))
    ]


def test_commands_of_p3_agent() -> None:
    lines = shown("p3-agent")
    assert lines
    for where, words in lines:
        try:
            parsed = cli.parser().parse_args(words)
        except SystemExit as error:
            raise AssertionError(where) from error
        if hasattr(parsed, "state_dir"):
            assert settings(parsed).device, where


def test_rates_that_the_readme_shows_are_rates() -> None:
    (shown_rates,) = re.findall(
        r"A rate needs its unit \((.*?)\)", (ROOT / "README.md").read_text()
    )
    for text in re.findall(r"`(.+?)`", shown_rates):
        assert shape.parser().parse_args(["eth0", text]).rate == text
        assert parse_rate(text).bits_per_second > 0
