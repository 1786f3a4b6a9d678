"""What the service manager is told, and how it sees that the agent is alive: sd_notify(3)."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Mapping

log = logging.getLogger(__name__)


class Notifier:
    """Tells the manager that started this process; says nothing when there is none.

    `watchdog_s`: how often `alive` has to be called at the least, None if nobody watches.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        self._address = address.replace("@", "\0", 1) if address.startswith("@") else address
        self.watchdog_s = _watchdog_s(environment)

    def ready(self, status: str) -> None:
        """Started, or done with a reload."""
        self._send("READY=1", f"STATUS={status}")

    def status(self, text: str) -> None:
        """What the agent is at, in a line."""
        self._send(f"STATUS={text}")

    def reloading(self) -> None:
        """The settings are read anew; `ready` ends this."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """The end has begun."""
        self._send("STOPPING=1")

    def alive(self) -> None:
        """The work that matters goes on."""
        if self.watchdog_s is not None:
            self._send("WATCHDOG=1")

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        text = "\n".join(line.replace("\n", " ") for line in lines)
        kind = socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        try:
            with socket.socket(socket.AF_UNIX, kind) as sender:
                sender.sendto(text.encode(errors="replace"), self._address)
        except OSError as error:
            log.warning("cannot tell the service manager %r: %s", lines[0], error)


def _watchdog_s(environment: Mapping[str, str]) -> float | None:
    """Seconds between two signs of life that sd_watchdog_enabled(3) would tell, or None."""
    if environment.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    given = environment.get("WATCHDOG_USEC", "")
    return int(given) / 1e6 if given.isdecimal() and int(given) > 0 else None
