"""What every program that torchrun starts on a node does alike: begin, report errors, count."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path
from types import TracebackType
from typing import NoReturn

import torch
import torch.distributed as dist

from experiments.messages import Failed, Started, tell

DEVICE = "eth0"
_PR_SET_PDEATHSIG = 1


def begin() -> tuple[int, int]:
    """Join the process group; returns rank and number of nodes.

    The process ends when torchrun does, even if torchrun is killed, and an error that ends the
    process is told to the launcher first. One thread computes: nodes share the processors.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    rank = int(os.environ["RANK"])
    _tell_errors(rank)
    tell(Started(rank, os.getpid()))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    return rank, dist.get_world_size()


def end() -> NoReturn:
    """Leave together with the other nodes: nobody goes while another may still need it."""
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    # Taking torch down costs half a second of processor a node, which the next run waits for.
    os._exit(0)


def _tell_errors(rank: int) -> None:
    usual = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        tell(Failed(rank, f"{kind.__name__}: {error}"))
        usual(kind, error, trace)

    sys.excepthook = hook


def master_address() -> str:
    """The address of rank 0's node, as torchrun was told it."""
    return os.environ["MASTER_ADDR"]


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
