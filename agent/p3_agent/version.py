"""Which version is installed."""

from __future__ import annotations

from argparse import SUPPRESS, Action, ArgumentParser, Namespace
from functools import cache


@cache
def installed() -> str:
    """This distribution's version; importlib.metadata.PackageNotFoundError without one."""
    from importlib.metadata import version  # noqa: PLC0415 - an eighth of a command's start

    return version("p3-transport")


class ShowVersion(Action):
    """`--version`, looked up when it is asked for."""

    def __init__(self, option_strings: list[str], dest: str) -> None:
        super().__init__(
            option_strings,
            dest,
            nargs=0,
            default=SUPPRESS,
            help="show program's version number and exit",
        )

    def __call__(  # noqa: D102
        self,
        parser: ArgumentParser,
        namespace: Namespace,  # noqa: ARG002
        values: object,  # noqa: ARG002
        option_string: str | None = None,  # noqa: ARG002
    ) -> None:
        print(installed())
        parser.exit()
