"""The program on each node for `reproduce accuracy`: a real training for each line of its input."""

from __future__ import annotations

import gc
import sys
from dataclasses import replace

import msgspec
import torch
from torch import Tensor

import p3
from experiments import node, workloads
from experiments.digits import load
from experiments.messages import tell
from experiments.reproduce.lessons import SINGLE, WORKLOAD, Lesson
from experiments.train import Trained, ddp, train
from experiments.workloads import Workload
from p3.compared import COMPARED
from p3.engines import NO_CODEC, PS

_IN_CODEC = "topk"
"""Corrects momentum itself, so that the optimizer has none."""


def joint(workload: Workload, nodes: int) -> Workload:
    """The workload with all nodes' batches in one."""
    data = load()

    def batch(iteration: int) -> tuple[Tensor, Tensor]:
        parts = [data.batch(rank, nodes, iteration) for rank in range(nodes)]
        images, labels = zip(*parts, strict=True)
        return torch.cat(images), torch.cat(labels)

    return replace(workload, batch=batch)


def trained(lesson: Lesson, workload: Workload) -> Trained:
    """The workload under the lesson's system."""
    if lesson.system == SINGLE:
        optimizer = workload.optimizer()
        return Trained(workload.model, optimizer, lambda: None, lambda: None, lambda: 0)
    if lesson.system == "ddp":
        return ddp(workload)
    kind = COMPARED[lesson.system] if lesson.codec == NO_CODEC else PS
    model, distributed = p3.pytorch.distribute(
        workload.model,
        workload.optimizer(),
        engine=kind,
        codec=lesson.codec,
        update="server" if lesson.system == "asgd" else "worker",
    )
    return Trained(model, distributed, distributed.synchronize, distributed.close, lambda: 0)


def learn(rank: int, nodes: int, lesson: Lesson) -> None:
    """One lesson, told to the launcher."""
    workload = workloads.make(WORKLOAD, rank, nodes)
    iterations = lesson.iterations
    if lesson.codec == _IN_CODEC:
        workload = replace(workload, momentum=0.0)
    if lesson.system == SINGLE and rank == 0:
        workload = joint(workload, nodes)
    elif lesson.system == SINGLE:
        iterations = 1  # only rank 0's counts, and the others leave it the processors
    system = trained(lesson, workload)
    tell(train(rank, workload, system, iterations, evaluate_every=lesson.every if rank == 0 else 0))
    system.close()


def main() -> None:
    """See the module's text."""
    rank, nodes = node.begin()
    for line in sys.stdin:
        learn(rank, nodes, msgspec.json.decode(line, type=Lesson))
        gc.collect()
    node.end()


if __name__ == "__main__":
    main()
