"""A real workload: scikit-learn's handwritten digits and a convolutional classifier."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from experiments import dataset

BATCH = 128
"""Images a node and iteration."""

SIDE = 16
CLASSES = 10
_TEST_PART = 5
_SPLIT_SEED = 1


@dataclass(frozen=True, slots=True)
class Size:
    """Channels of the two pairs of convolutions, and widths of the two hidden linear layers."""

    channels: tuple[int, int]
    hidden: tuple[int, int]


SIZES = {
    "small": Size((32, 64), (288, 128)),
    "medium": Size((48, 96), (704, 256)),
    "large": Size((64, 128), (1664, 512)),
}
"""About 0.4, 1.4 and 4.5 million parameters."""


def classifier(size: Size) -> nn.Module:
    """4 convolutions and 3 linear layers over (batch, 1, 16, 16); the torch seed decides it.

    Smooth all through: at a kink, a sum's last bit may decide, and loss curves of systems that
    add in another order would part.
    """
    narrow, wide = size.channels
    first, second = size.hidden
    last = nn.Linear(second, CLASSES)
    model = nn.Sequential(
        nn.Conv2d(1, narrow, 3, padding=1),
        nn.GELU(),
        nn.Conv2d(narrow, narrow, 3, padding=1),
        nn.GELU(),
        nn.AvgPool2d(2),
        nn.Conv2d(narrow, wide, 3, padding=1),
        nn.GELU(),
        nn.Conv2d(wide, wide, 3, padding=1),
        nn.GELU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(wide * (SIDE // 4) ** 2, first),
        nn.GELU(),
        nn.Linear(first, second),
        nn.GELU(),
        last,
    )
    for module in model:
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
    nn.init.normal_(last.weight, std=0.01)
    return model


@dataclass(frozen=True, slots=True)
class Digits:
    """1797 images, split once and for all; (n, 1, 16, 16) floats of mean 0, and labels (n,)."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor

    def batch(self, rank: int, nodes: int, iteration: int) -> tuple[Tensor, Tensor]:
        """Batch number `iteration` of a node's own shard: (64, 1, 16, 16) and (64,).

        Every node has every N-th training image, in an order of its own for every epoch.
        """
        shard = torch.arange(rank, len(self.train_labels), nodes)
        batches = max(1, len(shard) // BATCH)
        epoch, number = divmod(iteration, batches)
        shuffled = torch.Generator().manual_seed(1000 * epoch + rank)
        order = torch.randperm(len(shard), generator=shuffled)
        chosen = shard[order[number * BATCH : (number + 1) * BATCH]]
        return self.train_images[chosen], self.train_labels[chosen]

    def accuracy(self, model: nn.Module) -> float:
        """Part of the test images that `model` names right."""
        with torch.no_grad():
            named = model(self.test_images).argmax(dim=1)
        return float((named == self.test_labels).float().mean())


def load(path: Path | None = None) -> Digits:
    """The data set from a file that `dataset.save` wrote, or from scikit-learn itself."""
    pixels, numbers = dataset.digits() if path is None else dataset.read(path)
    images = torch.from_numpy(pixels).unsqueeze(1)
    images = functional.interpolate(images, size=(SIDE, SIDE), mode="bilinear", align_corners=False)
    images = (images - images.mean()) / images.std()
    labels = torch.from_numpy(numbers)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(_SPLIT_SEED))
    test, train = order[: len(order) // _TEST_PART], order[len(order) // _TEST_PART :]
    return Digits(images[train], labels[train], images[test], labels[test])
