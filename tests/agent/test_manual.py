"""The manual pages and completions say what the parsers say."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from argparse import ArgumentParser
from pathlib import Path

import pytest

from p3_agent import cli
from p3_agent.commands.completion import SHELLS, every_parser, script
from p3_shaper import cli as shape

ROOT = Path(__file__).parents[2]
AGENT_PAGE, SHAPE_PAGE = ROOT / "agent/p3-agent.8", ROOT / "shaper/p3-shape.8"


def options(part: ArgumentParser) -> set[str]:
    """Long options, --help apart."""
    long = (text for action in part._actions for text in action.option_strings)
    return {text for text in long if text.startswith("--")} - {"--help"}


def sections(page: Path) -> dict[str, str]:
    """What a page says under each command's heading (.SS)."""
    parts = re.split(r"^\.S([SH]) (.*)$", page.read_text(), flags=re.MULTILINE)
    return {
        parts[at + 1].replace("\\-", "-"): parts[at + 2].replace("\\-", "-")
        for at in range(1, len(parts), 3)
        if parts[at] == "S"
    }


def test_every_command_and_option_is_in_the_manual_and_no_other() -> None:
    written = sections(AGENT_PAGE)
    (_, whole), *commands = every_parser(cli.parser())
    assert set(written) == {name for name, _ in commands}
    for name, part in commands:
        said = set(re.findall(r"--[a-z][a-z-]*", written[name]))
        assert options(part) <= said, f"p3-agent.8 lacks options of `{name}`"
        known = options(part) | options(whole) | options(dict(commands)["run"])
        assert said <= known, f"p3-agent.8 tells of options that `{name}` has not"


def test_the_manual_of_p3_shape() -> None:
    said = set(re.findall(r"--[a-z][a-z-]*", SHAPE_PAGE.read_text().replace("\\-", "-")))
    assert said - {"--help"} == options(shape.parser())


@pytest.mark.parametrize("page", [AGENT_PAGE, SHAPE_PAGE], ids=lambda page: page.stem)
def test_groff_has_nothing_to_say(page: Path) -> None:
    done = subprocess.run(
        ["groff", "-man", "-ww", "-z", "-Tutf8", page], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_wheel_has_the_pages(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.iterdir()
    names = zipfile.ZipFile(wheel).namelist()
    for page in (AGENT_PAGE, SHAPE_PAGE):
        assert any(name.endswith(f"data/share/man/man8/{page.name}") for name in names)


@pytest.mark.parametrize("shell", SHELLS)
def test_completions_know_every_command_and_option(shell: str) -> None:
    (_, whole), *commands = every_parser(cli.parser())
    made = script(whole, shell)
    for name, part in commands:
        assert name in made
        for option in options(part):
            assert option.removeprefix("--") in made


COMPLETE = """
source /dev/stdin
complete_one() {
    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
    local function=$(complete -p "$1" | sed 's/.*-F \\([^ ]*\\).*/\\1/')
    "$function" "$1" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
    echo "${COMPREPLY[*]}"
}
complete_one p3-agent doc
complete_one p3-agent doctor --sec
complete_one p3-agent run --mode htb
complete_one p3-agent run --dev l
"""


def test_bash_completes() -> None:
    made = script(cli.parser(), "bash")
    done = subprocess.run(
        ["bash", "-c", COMPLETE], input=made, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    command, option, modes, interfaces = done.stdout.splitlines()
    assert (command, option, modes) == ("doctor", "--seconds", "htb htb+prio")
    assert "lo" in interfaces.split()
