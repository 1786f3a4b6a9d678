"""Options that several commands share, and the settings that they make."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace, _SubParsersAction
from pathlib import Path
from typing import TypeAlias, get_args

from p3_agent import config
from p3_agent.confirmation import seconds_of

Commands: TypeAlias = "_SubParsersAction[ArgumentParser]"
"""What `add_subparsers` returns; argparse has no public name for it."""


def add_settings(command: ArgumentParser) -> None:
    """Everything that decides on a tree."""
    add_place(command)
    add_socket(command)
    command.add_argument(
        "--rate", metavar="RATE", help='the link\'s rate, a little under the bottleneck: "10gbit"'
    )
    command.add_argument("--bands", type=int, metavar="N", help="how many bands (default 7)")
    command.add_argument(
        "--mode", choices=get_args(config.AskedMode), help="which kernel kinds to use"
    )


def add_place(command: ArgumentParser) -> None:
    """Which interface, and where its state is kept."""
    command.add_argument("--dev", metavar="NAME", help="the interface")
    command.add_argument("--config", type=Path, metavar="FILE", help="TOML; options here win")
    command.add_argument("--state-dir", metavar="DIR", help=f"default {config.DEFAULT_STATE_DIR}")
    command.add_argument(
        "--takeover",
        action="store_true",
        default=None,
        help="replace a root qdisc that is neither the agent's nor the kernel's default",
    )


def add_socket(command: ArgumentParser) -> None:
    """Which agent to talk to."""
    command.add_argument(
        "--socket", metavar="PATH", help="default $P3_AGENT_SOCKET, else /run/p3-agent/control.sock"
    )


def add_json(command: ArgumentParser, what: str = "one JSON object") -> None:
    """Output for programs."""
    command.add_argument("--json", action="store_true", help=f"for programs: {what}")


def add_confirm(command: ArgumentParser) -> None:
    """A time after which everything goes back."""
    command.add_argument(
        "--confirm",
        type=_seconds,
        metavar="TIME",
        help='go back after TIME ("60s", "5min") unless `p3-agent confirm` is run',
    )


def _seconds(text: str) -> float:
    try:
        return seconds_of(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from error


def settings(parsed: Namespace) -> config.Settings:
    """What the options say, over what `--config` says; ConfigError when they cannot be."""
    said = config.Options(
        device=parsed.dev,
        rate=getattr(parsed, "rate", None),
        bands=getattr(parsed, "bands", None),
        mode=getattr(parsed, "mode", None),
        takeover=parsed.takeover,
        socket=getattr(parsed, "socket", None),
        state_dir=parsed.state_dir,
        metrics=getattr(parsed, "metrics", None),
    )
    if parsed.config is not None:
        said = said.over(config.read_file(parsed.config))
    return config.settings(said)
