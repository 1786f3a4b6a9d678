"""The time that a device would take, for emulated layers of any framework."""

from __future__ import annotations

import time


class DeviceClock:
    """Paces layers like a device that computes one after the other, with a host beside it.

    In forward a layer begins when the host comes, since it may have waited for parameters. A
    sleep ends late and the device does not: what a layer overran is taken off the next one, so
    that late wake-ups do not add up over a hundred layers. In backward the device has the next
    layer queued while the host runs the hooks of the last one's gradients. Times are
    perf_counter's.
    """

    def __init__(self) -> None:
        self.free_at = 0.0
        """When the device has done all it was given."""
        self._late = 0.0

    def begin_forward(self, seconds: float) -> None:
        """The host comes with a layer of `seconds`."""
        self.free_at = time.perf_counter() - self._late + seconds

    def end_forward(self) -> None:
        """Return when the layer is done."""
        self.wait_until(self.free_at)
        self._late = time.perf_counter() - self.free_at

    def begin_backward(self, seconds: float) -> None:
        """A layer of `seconds` follows what the device was given before."""
        self.free_at += seconds

    def end_backward(self) -> None:
        """Return when the layer is done."""
        self.wait_until(self.free_at)
        # The host's own delays are not the device's: the next forward begins when it comes.
        self._late = 0.0

    def wait_until(self, deadline: float) -> None:
        """Return at perf_counter's `deadline`, or at once when it is over."""
        remaining = deadline - time.perf_counter()
        if remaining > 0:
            time.sleep(remaining)
