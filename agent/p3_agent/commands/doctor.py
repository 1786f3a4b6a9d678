"""`p3-agent doctor`: what is in the way of the bands, and the command that mends it."""

from __future__ import annotations

import argparse
import asyncio
import errno
import socket
from argparse import Namespace

from p3_agent import report
from p3_agent.commands.options import Commands, add_json, add_socket
from p3_agent.commands.top import is_elsewhere
from p3_agent.doctor.checks import diagnose
from p3_agent.doctor.collect import Question, ask_agent, collect
from p3_agent.doctor.findings import Finding, is_ill, lines
from p3_agent.errors import UsageError
from p3_agent.messages import Status
from p3_shaper.errors import TcError
from p3_shaper.netlink import open_netlink
from p3_shaper.rates import Rate, RateError, parse_rate

_MAX_SECONDS = 3600.0


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    command = commands.add_parser(
        "doctor", help="say what is in the way of the bands, and the command that mends it"
    )
    command.add_argument("--dev", metavar="NAME", help="the interface (default: the agent's)")
    add_socket(command)
    command.add_argument(
        "--rate", type=_rate, metavar="RATE", help="judge this rate (default: the agent's)"
    )
    command.add_argument(
        "--seconds",
        type=_seconds,
        default=1.0,
        metavar="S",
        help="watch the traffic for so long (default 1; 0: not at all)",
    )
    add_json(command)
    command.set_defaults(command=_main)


def _rate(text: str) -> Rate:
    try:
        return parse_rate(text)
    except RateError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value <= _MAX_SECONDS:
        raise argparse.ArgumentTypeError(f"{text}: choose 0 to {_MAX_SECONDS:g} s")
    return value


def _main(parsed: Namespace) -> int:
    question = _question(parsed)
    findings = asyncio.run(examine(question))
    if parsed.json:
        print(report.object_text({"device": question.device, "findings": findings}))
    elif findings:
        print(*lines(findings), sep="\n")
    else:
        print(f"{question.device}: nothing found")
    return int(is_ill(findings))


def _question(parsed: Namespace) -> Question:
    agent, table = ask_agent(parsed.socket)
    its_name = None if agent is None else _name_now(agent)
    device = parsed.dev or its_name
    if device is None:
        raise UsageError("no interface named, and no agent runs whose it could be: give --dev")
    keeper = agent if its_name == device else None
    return Question(device, keeper, table, parsed.rate, parsed.seconds)


def _name_now(agent: Status) -> str:
    """What the agent's interface is called: it may have been renamed since the start."""
    if is_elsewhere(agent):
        return agent.device
    try:
        return socket.if_indextoname(agent.index)
    except OSError:
        return agent.device


async def examine(question: Question) -> tuple[Finding, ...]:
    """Look at the node and judge; UsageError for an unknown interface, TcError."""
    async with open_netlink() as netlink:
        try:
            await netlink.link(question.device)
        except TcError as error:
            if error.errno == errno.ENODEV:
                raise UsageError(str(error)) from error
            raise
        return diagnose(await collect(netlink, question))
