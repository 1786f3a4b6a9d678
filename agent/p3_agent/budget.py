"""How often the agent repairs what another program keeps breaking. Pure: the time comes in."""

from __future__ import annotations


class Budget:
    """A token bucket: `burst` repairs in a row, and from then on one every `refill_s` seconds."""

    def __init__(self, burst: int, refill_s: float) -> None:
        self._burst = burst
        self._refill_s = refill_s
        self._spent = 0.0
        self._at = 0.0

    def wait_s(self, now: float) -> float:
        """Seconds until a repair may be made; 0 if it may be made now."""
        excess = self._left_of(now) + 1 - self._burst
        return max(0.0, excess * self._refill_s)

    def spend(self, now: float) -> None:
        """A repair was made; one that did not wait is owed, up to a whole burst."""
        self._spent = min(self._left_of(now) + 1, 2.0 * self._burst)
        self._at = now

    def _left_of(self, now: float) -> float:
        return max(0.0, self._spent - (now - self._at) / self._refill_s)
