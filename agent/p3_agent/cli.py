"""`p3-agent`: the command line. Exit status 0 done, 1 not done (one sentence says why), 2 usage."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

from p3_agent import client, commands, config, report
from p3_agent.errors import SENTENCES, AgentError
from p3_agent.messages import ControlError, socket_path


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the console script's entry point."""
    parsed = _parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], int] = parsed.command
    try:
        status = command(parsed)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read our output has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (*SENTENCES, ControlError) as error:
        print(f"p3-agent: {error}", file=sys.stderr)
        return 1
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="p3-agent", description="Puts urgent gradient slices first on one interface."
    )
    parser.add_argument("--version", action="version", version=version("p3-transport"))
    kinds = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    run = kinds.add_parser(
        "run", help="apply the bands, keep them, and put back what was there at the end"
    )
    plan = kinds.add_parser("plan", help="print what `run` would do, and change nothing")
    for command in (run, plan):
        _add_settings(command)
    run.add_argument("--verbose", action="store_true", help="log every check, too")
    run.set_defaults(command=_run)
    plan.set_defaults(command=_plan)
    status = kinds.add_parser("status", help="show the running agent's tree and counters")
    _add_socket(status)
    status.add_argument("--json", action="store_true", help="for programs: one JSON object")
    status.set_defaults(command=_status)
    restore = kinds.add_parser(
        "restore", help="after a crash: put back what was there before the agent"
    )
    _add_place(restore)
    restore.set_defaults(command=_restore)
    return parser


def _add_settings(command: argparse.ArgumentParser) -> None:
    _add_place(command)
    _add_socket(command)
    command.add_argument(
        "--rate", metavar="RATE", help='the link\'s rate, a little under the bottleneck: "10gbit"'
    )
    command.add_argument("--bands", type=int, metavar="N", help="how many bands (default 7)")
    command.add_argument(
        "--mode", choices=("auto", "htb", "prio", "htb+prio"), help="which kernel kinds to use"
    )


def _add_place(command: argparse.ArgumentParser) -> None:
    command.add_argument("--dev", metavar="NAME", help="the interface")
    command.add_argument("--config", type=Path, metavar="FILE", help="TOML; options here win")
    command.add_argument("--state-dir", metavar="DIR", help=f"default {config.DEFAULT_STATE_DIR}")
    command.add_argument(
        "--takeover",
        action="store_true",
        default=None,
        help="replace a root qdisc that is neither the agent's nor the kernel's default",
    )


def _add_socket(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--socket", metavar="PATH", help="default $P3_AGENT_SOCKET, else /run/p3-agent/control.sock"
    )


def _settings(parsed: argparse.Namespace) -> config.Settings:
    said = config.Options(
        device=parsed.dev,
        rate=getattr(parsed, "rate", None),
        bands=getattr(parsed, "bands", None),
        mode=getattr(parsed, "mode", None),
        takeover=parsed.takeover,
        socket=getattr(parsed, "socket", None),
        state_dir=parsed.state_dir,
    )
    if parsed.config is not None:
        said = said.over(config.read_file(parsed.config))
    return config.settings(said)


def _run(parsed: argparse.Namespace) -> int:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    if parsed.verbose:
        logging.getLogger("p3_agent").setLevel(logging.DEBUG)
    asyncio.run(commands.run(_settings(parsed)))
    return 0


def _plan(parsed: argparse.Namespace) -> int:
    print(asyncio.run(commands.plan(_settings(parsed))))
    return 0


def _status(parsed: argparse.Namespace) -> int:
    status = client.status(parsed.socket)
    if status is None:
        raise AgentError(
            f"no agent listens at {socket_path(parsed.socket)}; start one with `p3-agent run`, "
            "or name its --socket"
        )
    print(report.as_json(status) if parsed.json else report.as_text(status))
    return 0 if status.state == "ok" else 1


def _restore(parsed: argparse.Namespace) -> int:
    print(asyncio.run(commands.restore(_settings(parsed))))
    return 0
