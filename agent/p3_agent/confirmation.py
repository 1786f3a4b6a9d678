"""A start that goes back by itself unless it is confirmed: `p3-agent apply --confirm 60s`."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable

from p3_agent.errors import AgentError

log = logging.getLogger(__name__)

_UNITS = {"s": 1, "min": 60, "h": 3600}
_LONGEST_S = 24 * 3600


class NotConfirmedError(AgentError):
    """Nobody confirmed in time, and what was there before is there again."""


def seconds_of(text: str) -> float:
    """A time as the user wrote it ("60s", "5min", "1h"), in seconds; ValueError if it is none."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(s|min|h)", text.strip())
    seconds = float(found[1]) * _UNITS[found[2]] if found else 0
    if not 0 < seconds <= _LONGEST_S:
        raise ValueError(f"{text!r} is no time up to 24h with its unit, like 60s, 5min or 1h")
    return seconds


class Confirmation:
    """Waits for the operator's word for `seconds`; None: nothing has to be confirmed."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._said = asyncio.Event()
        self._deadline: float | None = None
        self._is_late = False
        self._then: list[Callable[[], None]] = []

    def then(self, action: Callable[[], None]) -> None:
        """Have `action` called as soon as it is confirmed."""
        self._then.append(action)

    @property
    def left_s(self) -> float | None:
        """Seconds until everything goes back; None when nothing waits for a confirmation."""
        if self._deadline is None or self._said.is_set():
            return None
        return max(0.0, self._deadline - asyncio.get_running_loop().time())

    async def wait(self, stop: asyncio.Event) -> None:
        """Return when it is confirmed, or set `stop` at the deadline."""
        if self._seconds is None:
            return
        try:
            async with asyncio.timeout(self._seconds) as deadline:
                self._deadline = deadline.when()
                await self._said.wait()
        except TimeoutError:
            self._is_late = True
            log.warning("nobody confirmed within %g s: going back", self._seconds)
            stop.set()

    def confirm(self) -> str:
        """Take the operator's word; what it means, in words. AgentError after the deadline."""
        if self._is_late:
            raise AgentError("too late: nobody confirmed in time, and the agent is going back")
        if self._seconds is None:
            return "nothing to confirm: the agent was started without --confirm"
        if self._said.is_set():
            return "confirmed already: the bands stay"
        self._said.set()
        for action in self._then:
            action()
        log.info("confirmed: the bands stay")
        return "confirmed: the bands stay"

    def is_said(self) -> bool:
        """Whether it was confirmed."""
        return self._said.is_set()

    def require(self) -> None:
        """Raise NotConfirmedError unless it was confirmed."""
        self.check()
        if not self.is_said():
            raise NotConfirmedError(
                "stopped before `p3-agent confirm` was run: the bands were taken away again; start "
                "once more, and confirm when the node works"
            )

    def check(self) -> None:
        """Raise NotConfirmedError if the deadline has passed."""
        if self._is_late:
            raise NotConfirmedError(
                f"nobody ran `p3-agent confirm` within {self._seconds:g} s: the bands were taken "
                "away again; start once more, and confirm when the node works"
            )
