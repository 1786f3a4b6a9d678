"""`p3`: the command line. Exit status 0 done, 1 not done (one sentence says why), 2 usage."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version

from p3.commands import predict, profile
from p3.commands.options import UsageError
from p3.engine import P3Error
from p3_shaper.console import carried_out


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the console script's entry point."""
    parsed = parser().parse_args(arguments)
    return carried_out("p3", partial(_run, parsed.command, parsed))


def _run(command: Callable[[argparse.Namespace], int], parsed: argparse.Namespace) -> int:
    try:
        return command(parsed)
    except (P3Error, UsageError) as error:
        print(f"p3: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    made = argparse.ArgumentParser(
        prog="p3", description="Would priorities make a model's training faster?"
    )
    made.add_argument("--version", action="version", version=version("p3-transport"))
    commands = made.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for module in (profile, predict):
        module.add(commands)
    return made
