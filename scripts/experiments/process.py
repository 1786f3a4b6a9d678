"""What every measured process on a node does alike, whatever its framework."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path
from types import TracebackType

from experiments.messages import Failed, Started, tell

DEVICE = "eth0"
_PR_SET_PDEATHSIG = 1


def begin() -> int:
    """This process's rank. It ends when its parent does, and tells the launcher of its errors."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    rank = int(os.environ["RANK"])
    _tell_errors(rank)
    tell(Started(rank, os.getpid()))
    return rank


def _tell_errors(rank: int) -> None:
    usual = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        tell(Failed(rank, f"{kind.__name__}: {error}"))
        usual(kind, error, trace)

    sys.excepthook = hook


def sent_bytes(device: str = DEVICE) -> int:
    """Bytes that `device` of this network namespace has sent so far, headers included.

    LookupError when there is no such device.
    """
    # Unlike /sys/class/net, which shows the namespace that it was mounted in.
    for line in Path("/proc/self/net/dev").read_text(encoding="ascii").splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == device:
            return int(counters.split()[8])
    raise LookupError(f"no device {device} in this network namespace")
