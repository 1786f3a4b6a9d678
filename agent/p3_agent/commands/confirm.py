"""`p3-agent confirm`: keep the bands of an agent that was started with --confirm."""

from __future__ import annotations

from argparse import Namespace

from p3_agent import client
from p3_agent.commands.options import Commands, add_json, add_socket
from p3_agent.errors import AgentError
from p3_agent.messages import socket_path
from p3_agent.report import object_text


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    command = commands.add_parser(
        "confirm", help="keep the bands of an agent that was started with --confirm"
    )
    add_socket(command)
    add_json(command)
    command.set_defaults(command=_main)


def _main(parsed: Namespace) -> int:
    steps = client.confirm(parsed.socket)
    if steps is None:
        raise AgentError(
            f"no agent listens at {socket_path(parsed.socket)}: it went back already, or runs "
            "elsewhere (name its --socket)"
        )
    print(object_text({"said": steps[0]}) if parsed.json else steps[0])
    return 0
