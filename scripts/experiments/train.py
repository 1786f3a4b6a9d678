"""The program that torchrun starts on each node: one workload, trained by one system.

python -m experiments.train --system ddp|p3 [--engine groups|ps] --workload NAME --iterations N
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from experiments import node, process, workloads
from experiments.messages import Finished, Iterated, tell
from experiments.workloads import Workload

CALIBRATION = 5
"""Iterations without communication that measure a real workload's compute time."""


@dataclass(frozen=True, slots=True)
class Trained:
    """A model and optimizer under some system.

    `finish` returns once every update is applied, `close` releases what the system holds;
    `payload_bytes` is what it says it sent so far, 0 when it does not say.
    """

    model: nn.Module
    optimizer: Optimizer
    finish: Callable[[], None]
    close: Callable[[], None]
    payload_bytes: Callable[[], int]


def ddp(workload: Workload) -> Trained:
    """PyTorch's DistributedDataParallel, in its default buckets unless the workload is shrunk."""
    optimizer = workload.optimizer()
    model = DistributedDataParallel(workload.model, bucket_cap_mb=workload.bucket_mib)
    return Trained(model, optimizer, lambda: None, lambda: None, lambda: 0)


def p3_trained(
    workload: Workload, engine: Literal["groups", "ps"], slice_numel: int | None, port_buffer: int
) -> Trained:
    """P3 with the given engine."""
    import p3  # noqa: PLC0415 - DDP's process runs nothing of ours

    model, optimizer = p3.pytorch.distribute(
        workload.model,
        workload.optimizer(),
        engine=engine,
        slice_numel=slice_numel,
        port_buffer=port_buffer,
    )

    def payload_bytes() -> int:
        moving = optimizer.engine
        return moving.statistics().payload_bytes_sent if moving else 0

    return Trained(model, optimizer, optimizer.synchronize, optimizer.close, payload_bytes)


def compute_s(workload: Workload) -> float:
    """Median seconds of an iteration without communication, all nodes computing at once."""
    if workload.compute_s is not None:
        return workload.compute_s
    optimizer = workload.optimizer()
    times: list[float] = []
    for iteration in range(CALIBRATION):
        began = time.perf_counter()
        step(workload, workload.model, optimizer, iteration)
        times.append(time.perf_counter() - began)
    # The first iteration allocates.
    return statistics.median(times[1:])


def step(workload: Workload, model: nn.Module, optimizer: Optimizer, iteration: int) -> float:
    """One iteration; its loss."""
    inputs, wanted = workload.batch(iteration)
    optimizer.zero_grad()
    loss = workload.loss(model(inputs), wanted)
    torch.autograd.backward(loss)
    optimizer.step()
    return float(loss.detach())


def train(
    rank: int, workload: Workload, trained: Trained, iterations: int, evaluate_every: int = 0
) -> Finished:
    """Train and measure; every rank calls it at the same time. `compute_s` is left 0.

    Accuracy is measured every so many iterations, if any, which takes time.
    """
    starts: list[float] = []
    accuracies: list[float] = []
    losses: list[float] = []
    dist.barrier()
    cpu, sent = time.process_time(), process.sent_bytes()
    for iteration in range(iterations):
        starts.append(time.perf_counter())
        losses.append(step(workload, trained.model, trained.optimizer, iteration))
        if rank == 0:
            tell(Iterated(iteration, losses[-1]))
        if workload.accuracy and evaluate_every and (iteration + 1) % evaluate_every == 0:
            trained.finish()
            accuracies.append(workload.accuracy(workload.model))
    trained.finish()
    ended = time.perf_counter()
    dist.barrier()
    return Finished(
        rank=rank,
        starts=starts,
        ended=ended,
        losses=losses,
        compute_s=0.0,
        accuracy=workload.accuracy(workload.model) if workload.accuracy else None,
        digest=digest(workload.model),
        parameters=sum(parameter.numel() for parameter in workload.model.parameters()),
        images=workload.images,
        sent_bytes=process.sent_bytes() - sent,
        payload_bytes=trained.payload_bytes(),
        cpu_s=time.process_time() - cpu,
        accuracies=accuracies,
    )


def digest(model: nn.Module) -> str:
    """SHA-256 over every parameter's bytes: equal exactly when two models are, bit for bit."""
    total = hashlib.sha256()
    for parameter in model.parameters():
        total.update(parameter.detach().contiguous().numpy().data)
    return total.hexdigest()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="experiments.train", description=__doc__)
    parser.add_argument("--system", choices=("ddp", "p3"), required=True)
    parser.add_argument("--engine", choices=("groups", "ps"), default="groups")
    parser.add_argument("--workload", choices=workloads.names(), required=True)
    parser.add_argument("--iterations", type=int, required=True)
    parser.add_argument("--data", type=Path, help="a data set that dataset.save wrote")
    parser.add_argument("--slice-numel", type=int)
    parser.add_argument("--port-buffer", type=int, default=256_000)
    return parser.parse_args()


def main() -> None:
    """Run under torchrun; see the module's text."""
    chosen = _arguments()
    rank, nodes = node.begin()
    alone_s = compute_s(workloads.make(chosen.workload, rank, nodes, chosen.data))
    workload = workloads.make(chosen.workload, rank, nodes, chosen.data)
    if chosen.system == "ddp":
        trained = ddp(workload)
    else:
        trained = p3_trained(workload, chosen.engine, chosen.slice_numel, chosen.port_buffer)
    finished = train(rank, workload, trained, chosen.iterations)
    tell(msgspec.structs.replace(finished, compute_s=alone_s))
    trained.close()
    node.end()


if __name__ == "__main__":
    main()
