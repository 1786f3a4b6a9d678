"""What is asked of a running agent from outside, and whom it tells: signals, service manager."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass

from p3_agent.config import Settings
from p3_agent.notify import Notifier


@dataclass(frozen=True, slots=True)
class Orders:
    """`stop` and `reload` are set when that is to be done; `read` reads the settings anew.

    `read` raises AgentError when they cannot be.
    """

    stop: asyncio.Event
    reload: asyncio.Event
    read: Callable[[], Settings]
    notifier: Notifier


def by_signals(read: Callable[[], Settings]) -> Orders:
    """SIGTERM and SIGINT stop, SIGHUP reloads; none interrupts a change.

    At a terminal SIGHUP says that the terminal is gone, and stops, too.
    """
    is_at_terminal = os.isatty(sys.__stdin__.fileno()) if sys.__stdin__ else False
    stop = stop_on_signals(hangup=is_at_terminal)
    reload = asyncio.Event()
    if not is_at_terminal:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload.set)
    return Orders(stop, reload, read, Notifier())


def stop_on_signals(*, hangup: bool = True) -> asyncio.Event:
    """An event that SIGTERM, SIGINT and, if `hangup`, SIGHUP set; none interrupts a change."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, *((signal.SIGHUP,) if hangup else ())):
        loop.add_signal_handler(number, stop.set)
    return stop
