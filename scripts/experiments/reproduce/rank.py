"""The program on each node: trains what each line of its input says, on emulated layers.

The input ends when the launcher is done. Every rank reads the same lines.
"""

from __future__ import annotations

import gc
import sys

import msgspec
import torch

import p3
from experiments import node, workloads
from experiments.emulation import Emulation
from experiments.messages import tell
from experiments.reproduce.points import Point
from experiments.train import Trained, ddp, train
from experiments.workloads import Workload
from p3.compared import engine_of


def trained(point: Point, workload: Workload) -> Trained:
    """The workload under the point's system."""
    if point.kind.cut == "buckets":
        return ddp(workload)
    model, optimizer = p3.pytorch.distribute(
        workload.model,
        workload.optimizer(),
        engine=engine_of(point.kind),
        slice_numel=point.emulated_slice_numel,
        port_buffer=point.port_buffer,
        update="worker" if point.kind.synchronous else "server",
    )
    return Trained(model, optimizer, optimizer.synchronize, optimizer.close, lambda: 0)


def measure(rank: int, point: Point) -> None:
    """One training, told to the launcher."""
    torch.manual_seed(workloads.SEED)
    emulation = Emulation(point.profile, point.scale)
    workload = workloads.emulated(emulation, rank, point.emulated_bucket_mib)
    system = trained(point, workload)
    finished = train(rank, workload, system, point.iterations)
    tell(msgspec.structs.replace(finished, compute_s=point.profile.compute_s))
    system.close()


def main() -> None:
    """See the module's text."""
    rank, _ = node.begin()
    for line in sys.stdin:
        measure(rank, msgspec.json.decode(line, type=Point))
        # What a training leaves, hooks and graphs in cycles, must not cost the next one time.
        gc.collect()
    node.end()


if __name__ == "__main__":
    main()
