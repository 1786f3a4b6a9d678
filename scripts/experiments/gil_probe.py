"""How long a thread waits until it has Python's interpreter lock (GIL) again."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

from experiments.device_clock import DeviceClock

_OPERATION = bytes(400_000)
"""What an operation works on, for some 0.3 ms. Much shorter ones have the GIL back before any other
thread wakes up."""


class GilProbe:
    """Gives the GIL up, computes without it and takes it again, as every operation of torch does.

    `longest_s` is the longest time in which the thread neither ran nor wanted for a processor: it
    waits for nothing but the GIL. On a virtual machine, time that its host takes counts as well.
    One thread.
    """

    def __init__(self) -> None:
        self.longest_s = 0.0

    def run_until(self, deadline: float) -> None:
        """Probe until perf_counter's `deadline`."""
        # Another thread's file would be read without its own queueing time.
        with Path("/proc/thread-self/schedstat").open("rb", buffering=0) as schedstat:
            queued = _queued_s(schedstat.fileno())
            while (began := time.perf_counter()) < deadline:
                ran = time.thread_time()
                hashlib.sha256(_OPERATION)
                took, ran = time.perf_counter() - began, time.thread_time() - ran
                before, queued = queued, _queued_s(schedstat.fileno())
                self.longest_s = max(self.longest_s, took - ran - (queued - before))


class ProbingClock(DeviceClock):
    """A device whose host asks `probe` for the GIL over and over, while there is one.

    Without one the device takes no time.
    """

    def __init__(self) -> None:
        super().__init__()
        self.probe: GilProbe | None = None

    def wait_until(self, deadline: float) -> None:
        """See DeviceClock."""
        if self.probe is not None:
            self.probe.run_until(deadline)


def _queued_s(schedstat: int) -> float:
    """Seconds that the thread was runnable and had no processor (Linux, sched-stats)."""
    return int(os.pread(schedstat, 64, 0).split()[1]) / 1e9
