"""`p3-agent completion`: what a shell needs to complete our commands, made from the parsers."""

from __future__ import annotations

import argparse
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator

import shtab

from p3_agent import cli
from p3_agent.commands.options import Commands
from p3_shaper import cli as shape

SHELLS = ("bash", "zsh", "fish")
_INTERFACE = shtab.cmd("ls /sys/class/net")
_COMPLETED = {
    "config": shtab.FILE,
    "socket": shtab.FILE,
    "state_dir": shtab.DIRECTORY,
    "cgroup": shtab.DIRECTORY,
    "dev": _INTERFACE,
    "device": _INTERFACE,
}
"""How a shell finds values, by the argument's name."""


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    command = commands.add_parser("completion", help="print a completion script for a shell")
    command.add_argument("shell", choices=SHELLS, help="the shell that is to read it")
    command.add_argument(
        "--program",
        choices=("p3-agent", "p3-shape"),
        default="p3-agent",
        help="whose arguments are completed (default p3-agent)",
    )
    command.set_defaults(command=_main)


def _main(parsed: Namespace) -> int:
    made = shape.parser() if parsed.program == "p3-shape" else cli.parser()
    print(script(made, parsed.shell))
    return 0


def script(made: ArgumentParser, shell: str) -> str:
    """The completion script for `shell`, one of SHELLS."""
    for _, part in every_parser(made):
        for action in part._actions:
            if action.dest in _COMPLETED:
                action.complete = _COMPLETED[action.dest]  # type: ignore[attr-defined]
    return shtab.complete(made, shell)


def every_parser(made: ArgumentParser) -> Iterator[tuple[str, ArgumentParser]]:
    """`made` and the parsers of its commands, each with its name. argparse has no public way."""
    yield made.prog, made
    for action in made._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.items()
