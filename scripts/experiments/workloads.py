"""What is trained, by name: `digits-medium` is real, `vgg19` and `resnet50` are emulated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from experiments import digits
from experiments.emulated_layers import emulated_network
from experiments.emulation import Emulation, emulations

SEED = 20
REAL_PREFIX = "digits-"
DDP_BUCKET_MIB = 25
"""DistributedDataParallel's default."""


@dataclass(frozen=True, slots=True)
class Workload:
    """One node's part of a training: model, batches, loss; `accuracy` where there is a test set.

    `compute_s` is known for emulated workloads only; a real one's is measured. `bucket_mib` is
    what DDP may put in a bucket, None for its default.
    """

    model: nn.Module
    batch: Callable[[int], tuple[Tensor, Tensor]]
    loss: Callable[[Tensor, Tensor], Tensor]
    images: int
    learning_rate: float
    momentum: float
    accuracy: Callable[[nn.Module], float] | None = None
    compute_s: float | None = None
    bucket_mib: float | None = None

    def optimizer(self) -> torch.optim.Optimizer:
        """A fresh optimizer over the model."""
        return torch.optim.SGD(
            self.model.parameters(), lr=self.learning_rate, momentum=self.momentum
        )


def names() -> tuple[str, ...]:
    """Every workload's name."""
    return (*(REAL_PREFIX + size for size in digits.SIZES), *emulations())


def make(name: str, rank: int, nodes: int, data: Path | None = None) -> Workload:
    """Rank `rank`'s part of workload `name`; the same parameters on every rank.

    A real one's data set is read from `data` (see `dataset.save`) if given. ValueError for an
    unknown name.
    """
    torch.manual_seed(SEED)
    if name in emulations():
        return emulated(emulations()[name], rank)
    size = digits.SIZES.get(name.removeprefix(REAL_PREFIX))
    if size is None or not name.startswith(REAL_PREFIX):
        raise ValueError(f"workload {name!r} is unknown; choose one of {', '.join(names())}")
    return _real(size, digits.load(data), rank, nodes)


def _real(size: digits.Size, data: digits.Digits, rank: int, nodes: int) -> Workload:
    return Workload(
        model=digits.classifier(size),
        batch=lambda iteration: data.batch(rank, nodes, iteration),
        loss=functional.cross_entropy,
        images=digits.BATCH,
        learning_rate=0.01,
        momentum=0.9,
        accuracy=data.accuracy,
    )


def emulated(emulation: Emulation, rank: int, bucket_mib: float | None = None) -> Workload:
    """Rank `rank`'s part of an emulated network; DDP's buckets as given (MiB), or shrunk alike."""
    value, target = torch.zeros(()), torch.zeros(())
    return Workload(
        model=emulated_network(emulation, rank),
        batch=lambda _: (value, target),
        loss=lambda output, wanted: output - wanted,
        images=emulation.profile.samples,
        learning_rate=0.1,
        momentum=0.0,
        compute_s=emulation.profile.compute_s,
        # Smaller by as much as the tensors: in whole ones, DDP would wait for all of backward.
        bucket_mib=bucket_mib or DDP_BUCKET_MIB / emulation.shrink,
    )
