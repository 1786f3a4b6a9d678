"""The program that bench_ranks starts: forks a rank into each of the namespaces it is told.

Torch is loaded once. Each rank trains a little with each engine and prints a line of JSON.

python -m experiments.ranks_node ADDRESS_OF_RANK_0 NAMESPACE...
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

import msgspec
import torch
import torch._dynamo  # else each rank would load it
import torch.distributed as dist
from torch import nn
from torch.nn import functional

import p3
from experiments.bench_ranks import ENGINES, Holding
from experiments.train import digest
from p3.adopt import socket_inodes
from p3.agreement import NoAgentWarning
from p3_shaper.namespace import enter

ITERATIONS = 3
LAYERS = 16
_WIDTH = 64
_PORT = "29500"


def main(address: str, namespaces: Sequence[str]) -> int:
    """The exit status is that of the first rank that fails."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", NoAgentWarning)
    children = []
    for rank, namespace in enumerate(namespaces):
        child = os.fork()
        if child == 0:
            enter(namespace)
            be_rank(rank, len(namespaces), address)
            return 0
        children.append(child)
    statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    return max(statuses, key=abs)


def be_rank(rank: int, size: int, address: str) -> None:
    """Train with every engine in turn."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), OMP_NUM_THREADS="1")
    os.environ.update(MASTER_ADDR=address, MASTER_PORT=_PORT, GLOO_SOCKET_IFNAME="eth0")
    dist.init_process_group("gloo")
    for engine in ENGINES:
        os.write(1, msgspec.json.encode(hold(rank, engine)) + b"\n")
    dist.barrier()
    dist.destroy_process_group()


def hold(rank: int, engine: str) -> Holding:
    """Train with `engine`, and count what that takes."""
    before = _count()
    model, inputs = network(rank)
    began = time.perf_counter()
    model, optimizer = p3.pytorch.distribute(
        model,
        torch.optim.SGD(model.parameters(), lr=0.01),
        engine="ps" if engine == "ps" else "groups",
    )
    for _ in range(ITERATIONS):
        optimizer.zero_grad()
        torch.autograd.backward(functional.mse_loss(model(inputs), inputs))
        optimizer.step()
    optimizer.synchronize()
    seconds = time.perf_counter() - began
    held = _count()
    assert optimizer.engine is not None
    bands = len(optimizer.engine.statistics().payload_bytes_by_band)
    dist.barrier()  # nobody closes while another still counts
    optimizer.close()
    dist.barrier()
    left = _count()
    return Holding(
        rank=rank,
        engine=engine,
        bands=bands,
        threads=held[0] - before[0],
        sockets=held[1] - before[1],
        left=left[0] - before[0] + left[1] - before[1],
        seconds=seconds,
        digest=digest(model),
    )


def network(rank: int) -> tuple[nn.Module, torch.Tensor]:
    """Layers enough for every band, and this rank's batch."""
    torch.manual_seed(1)
    layers = [nn.Linear(_WIDTH, _WIDTH) for _ in range(LAYERS)]
    return nn.Sequential(*layers), torch.randn(8, _WIDTH) * (rank + 1)


def _count() -> tuple[int, int]:
    return len(list(Path("/proc/self/task").iterdir())), len(socket_inodes())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
