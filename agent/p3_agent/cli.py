"""`p3-agent`: the command line. Exit status 0 done, 1 not done (one sentence says why), 2 usage."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version

from p3_agent.commands import (
    apply,
    completion,
    confirm,
    doctor,
    mark,
    plan,
    probe,
    restore,
    run,
    set_rate,
    status,
    top,
)
from p3_agent.errors import SENTENCES, UsageError
from p3_agent.messages import ControlError
from p3_shaper.console import carried_out

_COMMANDS = (
    run,
    apply,
    plan,
    status,
    top,
    doctor,
    set_rate,
    confirm,
    restore,
    probe,
    mark,
    completion,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the console script's entry point."""
    parsed = parser().parse_args(arguments)
    return carried_out("p3-agent", partial(_run, parsed.command, parsed))


def _run(command: Callable[[argparse.Namespace], int], parsed: argparse.Namespace) -> int:
    try:
        return command(parsed)
    except (*SENTENCES, ControlError) as error:
        print(f"p3-agent: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    made = argparse.ArgumentParser(
        prog="p3-agent", description="Puts urgent gradient slices first on one interface."
    )
    made.add_argument("--version", action="version", version=version("p3-transport"))
    made.set_defaults(parser=made)
    commands = made.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for module in _COMMANDS:
        module.add(commands)
    return made
