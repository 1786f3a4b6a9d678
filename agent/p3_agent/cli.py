"""`p3-agent`: the command line. Exit status 0 done, 1 not done (one sentence says why), 2 usage.

A command's module is imported when the command is given: half of a start would else be spent on
what other commands need.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module

from p3_agent.errors import SENTENCES, UsageError
from p3_agent.messages import ControlError
from p3_agent.version import ShowVersion
from p3_shaper.console import carried_out

_COMMANDS = (
    "run",
    "apply",
    "plan",
    "status",
    "top",
    "doctor",
    "set-rate",
    "confirm",
    "restore",
    "probe",
    "mark",
    "completion",
)
"""Each is a module of `commands`, with a function `add`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the console script's entry point."""
    words = sys.argv[1:] if arguments is None else arguments
    given = words[0] if words else None
    parsed = parser((given,) if given in _COMMANDS else _COMMANDS).parse_args(words)
    return carried_out("p3-agent", partial(_run, parsed.command, parsed))


def _run(command: Callable[[argparse.Namespace], int], parsed: argparse.Namespace) -> int:
    try:
        return command(parsed)
    except (*SENTENCES, ControlError) as error:
        print(f"p3-agent: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1


def parser(names: Sequence[str] = _COMMANDS) -> argparse.ArgumentParser:
    """The command line with the commands `names`, all by default."""
    made = argparse.ArgumentParser(
        prog="p3-agent", description="Puts urgent gradient slices first on one interface."
    )
    made.add_argument("--version", action=ShowVersion)
    commands = made.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name in names:
        import_module(f"p3_agent.commands.{name.replace('-', '_')}").add(commands)
    return made
