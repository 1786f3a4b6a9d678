"""`p3-agent mark`: a band's mark on what a cgroup's programs send, until it is stopped."""

from __future__ import annotations

import asyncio
import logging
from argparse import Namespace
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from p3_agent import client, mark_cgroup
from p3_agent.commands.options import Commands, add_json, add_socket
from p3_agent.mark import Mark
from p3_agent.mark_follow import Marker
from p3_agent.mark_nft import open_nft
from p3_agent.orders import stop_on_signals
from p3_agent.report import line_text
from p3_agent.site import require_net_admin
from p3_shaper.bands import default_table

LOOK_S = 1.0
"""Seconds between two looks at the cgroup."""


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    command = commands.add_parser(
        "mark", help="mark what programs that do not mark themselves send, until stopped"
    )
    command.add_argument(
        "--cgroup",
        metavar="PATH",
        type=Path,
        required=True,
        help="whose sockets: a directory of cgroup2, or as /proc/PID/cgroup shows it",
    )
    command.add_argument(
        "--band", metavar="N", type=int, required=True, help="0 is the most urgent"
    )
    add_socket(command)
    add_json(command, "the line that says it is ready as a JSON object")
    command.set_defaults(command=_main)


def _main(parsed: Namespace) -> int:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    words = _as_json if parsed.json else _as_text
    asyncio.run(mark(parsed.cgroup, parsed.band, parsed.socket, words))
    return 0


def _as_text(made: Mark) -> str:
    return f"ready {made.describe()}, by table inet {made.name}"


def _as_json(made: Mark) -> str:
    return line_text(
        {
            "cgroup": str(made.cgroup.path),
            "band": made.index,
            "dscp": made.band.dscp,
            "table": made.name,
        }
    )


async def mark(
    cgroup: Path, band: int, socket: str | None = None, words: Callable[[Mark], str] = _as_text
) -> None:
    """Mark until a signal; nothing stays, however this process ends.

    The band table is that of the agent that runs here, else the default. Prints one line,
    the `words`, when packets are being marked. Raises AgentError or ControlError.
    """
    stop = stop_on_signals()
    require_net_admin()
    table = client.bands(socket) or default_table()
    with open_nft() as nft:
        marker = Marker(nft, partial(mark_cgroup.find, cgroup), table, band)
        made = marker.begin()
        print(words(made), flush=True)
        while not stop.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await stop.wait()
            marker.look()
