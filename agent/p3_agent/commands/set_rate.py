"""`p3-agent set-rate`: shape at another rate from now on, without a packet lost."""

from __future__ import annotations

from argparse import Namespace

from p3_agent import client
from p3_agent.commands.options import Commands, add_json, add_socket
from p3_agent.config import rate_of
from p3_agent.errors import AgentError
from p3_agent.messages import socket_path
from p3_agent.report import object_text


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    command = commands.add_parser(
        "set-rate", help="have the running agent shape at another rate, until a reload or its end"
    )
    command.add_argument("rate", metavar="RATE", help='bits a second with a unit: "9.5gbit"')
    add_socket(command)
    add_json(command)
    command.set_defaults(command=_main)


def _main(parsed: Namespace) -> int:
    rate = rate_of(parsed.rate)
    steps = client.set_rate(parsed.rate, parsed.socket)
    if steps is None:
        raise AgentError(
            f"no agent listens at {socket_path(parsed.socket)}: start one with `p3-agent run`, "
            "or name its --socket"
        )
    if parsed.json:
        print(object_text({"rate": rate.bits_per_second, "steps": steps}))
    else:
        print("\n".join((f"now {rate}", *steps)))
    return 0
