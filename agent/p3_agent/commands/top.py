"""`p3-agent top`: every band as it is at work, and who sends in it."""

from __future__ import annotations

import argparse
import itertools
import socket
import time
from argparse import Namespace
from pathlib import Path

from p3_agent.commands.options import Commands, add_json, add_socket
from p3_agent.commands.status import ask
from p3_agent.messages import Status
from p3_agent.processes import holders
from p3_agent.report import line_text
from p3_agent.sample import Reading, leaving, sample
from p3_agent.terminal import Terminal, Wait, open_terminal
from p3_agent.top_text import fitted, lines
from p3_shaper.sockdiag import sockets

_MIN_INTERVAL, _MAX_INTERVAL = 0.1, 3600.0
_NOT_ROOT = "processes of other users are hidden: run as root to see who they are"
_ELSEWHERE = "the agent works in another network namespace: its senders are not seen from here"


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    command = commands.add_parser(
        "top", help="watch the bands: rate, backlog, drops, and who sends; q ends it"
    )
    add_socket(command)
    command.add_argument(
        "--interval", type=_seconds, default=1.0, metavar="S", help="seconds between samples (1)"
    )
    command.add_argument("--count", type=_count, metavar="N", help="end after N samples")
    add_json(command, "one JSON object a sample and line")
    command.set_defaults(command=_main)


def _seconds(text: str) -> float:
    value = float(text)
    if not _MIN_INTERVAL <= value <= _MAX_INTERVAL:
        raise argparse.ArgumentTypeError(f"{text}: choose {_MIN_INTERVAL} to {_MAX_INTERVAL:g} s")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text}: choose 1 or more")
    return value


def _main(parsed: Namespace) -> int:
    with open_terminal(live=not parsed.json) as terminal:
        _watch(parsed, terminal)
    return 0


def _watch(parsed: Namespace, terminal: Terminal) -> None:
    before, notes = _read(parsed.socket)
    shown = [f"{before.status.device}: measuring"]
    for _ in itertools.count() if parsed.count is None else range(parsed.count):
        until = time.monotonic() + parsed.interval
        _draw(terminal, shown)
        while (why := terminal.wait(until)) is Wait.RESIZE:
            _draw(terminal, shown)
        if why is Wait.QUIT:
            return
        after, notes = _read(parsed.socket)
        seen = sample(before, after)
        shown = lines(seen, notes)
        if parsed.json:
            print(line_text(seen), flush=True)
        elif not terminal.is_live:
            print(*shown, "", sep="\n", flush=True)
        before = after
    _draw(terminal, shown)


def _draw(terminal: Terminal, shown: list[str]) -> None:
    if terminal.is_live:
        terminal.show(fitted(shown, *terminal.size()))


def _read(path: str | None) -> tuple[Reading, list[str]]:
    """The bands now, and what about the senders could not be seen."""
    status = ask(path)
    there = sockets()
    held = holders(item.inode for item in leaving(there))
    reading = Reading(time.monotonic(), status, there, held.by_inode)
    notes = [] if held.complete else [_NOT_ROOT]
    if is_elsewhere(status):
        notes.append(_ELSEWHERE)
    return reading, notes


def is_elsewhere(status: Status) -> bool:
    """Whether the agent's network namespace is another one; by the interface if we may not look."""
    try:
        theirs = Path(f"/proc/{status.pid}/ns/net").stat().st_ino
    except OSError:
        try:
            return socket.if_nametoindex(status.device) != status.index
        except OSError:
            return True
    return theirs != Path("/proc/self/ns/net").stat().st_ino
