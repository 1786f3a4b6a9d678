"""`p3-agent status`: the running agent's tree and counters."""

from __future__ import annotations

from argparse import Namespace

from p3_agent import client, report
from p3_agent.commands.options import Commands, add_json, add_socket
from p3_agent.errors import AgentError
from p3_agent.messages import Status, socket_path


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    command = commands.add_parser("status", help="show the running agent's tree and counters")
    add_socket(command)
    add_json(command)
    command.set_defaults(command=_main)


def _main(parsed: Namespace) -> int:
    status = ask(parsed.socket)
    print(report.as_json(status) if parsed.json else report.as_text(status))
    return 0 if status.state == "ok" else 1


def ask(path: str | None) -> Status:
    """The status of the agent at `path` (see `socket_path`); AgentError when none listens."""
    status = client.status(path)
    if status is None:
        raise AgentError(
            f"no agent listens at {socket_path(path)}; start one with `p3-agent run`, "
            "or name its --socket"
        )
    return status
