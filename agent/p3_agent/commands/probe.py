"""`p3-agent probe`: do the marks survive the path to a host, and if not, where do they end?"""

from __future__ import annotations

import asyncio
from argparse import ArgumentTypeError, Namespace

from p3_agent import client
from p3_agent.commands.options import Commands, add_json, add_socket
from p3_agent.errors import UsageError
from p3_agent.orders import stop_on_signals
from p3_agent.probe import echo, report
from p3_agent.probe.listener import listen
from p3_agent.probe.search import Search
from p3_agent.probe.sender import Sender, Target, resolve
from p3_agent.probe.values import END_TO_END, Findings
from p3_agent.probe.verdict import judge
from p3_agent.report import line_text
from p3_shaper.bands import MAX_BANDS, default_table

MAX_HOPS = 30
WAIT_S = 1.0
"""For answers to a round; Linux grants one ICMP error a second to a target (icmp(7))."""


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    command = commands.add_parser(
        "probe", help="show whether marks survive the path to a host, hop by hop"
    )
    command.add_argument("host", metavar="HOST", nargs="?", help="a name or an address")
    command.add_argument("--dev", metavar="NAME", help="the interface to send by")
    command.add_argument(
        "--dscp",
        metavar="LIST",
        type=_dscps,
        help='which to probe: "41,39" (default: the bands of the agent here, else the usual ones)',
    )
    command.add_argument(
        "--port", type=_port, default=echo.PORT, help=f"UDP port there (default {echo.PORT})"
    )
    command.add_argument(
        "--max-hops", type=_hops, default=MAX_HOPS, metavar="N", help=f"default {MAX_HOPS}"
    )
    versions = command.add_mutually_exclusive_group()
    for version in (4, 6):
        versions.add_argument(
            f"-{version}", dest="version", action="store_const", const=version, help="this IP alone"
        )
    add_json(command)
    command.add_argument(
        "--listen", action="store_true", help="be the far end: answer probes until stopped"
    )
    command.add_argument("--address", help="with --listen: at this address alone")
    add_socket(command)
    command.set_defaults(command=_main)


def _main(parsed: Namespace) -> int:
    if parsed.listen == (parsed.host is not None):
        raise UsageError("name a HOST, or --listen, and not both")
    if parsed.listen:
        asyncio.run(_listen(parsed.port, parsed.address, as_json=parsed.json))
        return 0
    if parsed.address is not None:
        raise UsageError("--address goes with --listen")
    dscps = parsed.dscp or (client.bands(parsed.socket) or default_table()).dscps
    target = resolve(parsed.host, parsed.port, parsed.version)
    findings = probe(target, dscps, parsed.max_hops, parsed.dev)
    verdict = judge(findings)
    print((report.as_json if parsed.json else report.as_text)(findings, verdict))
    return 0 if verdict.survives else 1


def probe(target: Target, dscps: tuple[int, ...], max_hops: int, device: str | None) -> Findings:
    """Ask every hop to `target` about every DSCP. Raises AgentError when that cannot be done."""
    search = Search(dscps, max_hops)
    with Sender(target, dscps, device) as sender:
        while due := search.due():
            search.take(sender.ask(due, WAIT_S))
    return search.findings(target.address)


async def _listen(port: int, address: str | None, *, as_json: bool) -> None:
    def ready(where: str) -> None:
        line = line_text({"ready": where}) if as_json else f"ready for probes at {where}"
        print(line, flush=True)

    answered = await listen(port, address, stop_on_signals(), ready)
    print(line_text({"answered": answered}) if as_json else f"answered {answered} probes")


def _dscps(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.strip().isdecimal() and 1 <= int(part) <= 63 for part in parts):
        raise ArgumentTypeError(f"{text!r}: write DSCPs from 1 to 63 with commas between")
    found = tuple(dict.fromkeys(map(int, parts)))
    if len(found) > MAX_BANDS:
        raise ArgumentTypeError(f"{len(found)} DSCPs: name at most {MAX_BANDS}")
    return found


def _port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise ArgumentTypeError(f"{text!r} is no port: choose one from 1 to 65535")
    return int(text)


def _hops(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) < END_TO_END:
        raise ArgumentTypeError(f"{text!r}: choose 1 to {END_TO_END - 1} hops")
    return int(text)
