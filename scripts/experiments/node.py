"""What every program that torchrun starts on a node does alike: begin, report errors, count."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

import torch
import torch.distributed as dist

from experiments import process


def begin() -> tuple[int, int]:
    """Join the process group; returns rank and number of nodes.

    The process ends when torchrun does, even if torchrun is killed, and an error that ends the
    process is told to the launcher first. One thread computes: nodes share the processors.
    """
    rank = process.begin()
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


def master_address() -> str:
    """The address of rank 0's node, as torchrun was told it."""
    return os.environ["MASTER_ADDR"]
