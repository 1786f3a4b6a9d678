"""Published networks as values: parameter shapes and work per layer. Pure; imports no torch.

Shapes and operations follow the networks' papers (VGG: arXiv 1409.1556, table 1, column E;
ResNet: arXiv 1512.03385, table 1, with the stride on the 3x3 convolution as torchvision has it)
for one image of 224x224.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

IMAGE_SIDE = 224
CLASSES = 1000


@dataclass(frozen=True, slots=True)
class Layer:
    """One module with parameters: its tensors' shapes, and forward operations for one image."""

    name: str
    shapes: tuple[tuple[int, ...], ...]
    flops: int

    @property
    def numel(self) -> int:
        """Elements in all tensors."""
        return sum(prod(shape) for shape in self.shapes)


@dataclass(frozen=True, slots=True)
class Architecture:
    """A network's layers in forward order."""

    name: str
    layers: tuple[Layer, ...]

    @property
    def numel(self) -> int:
        """Parameters of the whole network."""
        return sum(layer.numel for layer in self.layers)

    @property
    def flops(self) -> int:
        """Forward operations for one image; a multiplication and an addition are two."""
        return sum(layer.flops for layer in self.layers)


def _convolution(
    name: str, channels: tuple[int, int], kernel: int, side: int, *, bias: bool
) -> Layer:
    """A convolution from channels[0] to channels[1] whose output is `side` x `side`."""
    inner, outer = channels
    shape = (outer, inner, kernel, kernel)
    shapes = (shape, (outer,)) if bias else (shape,)
    return Layer(name, shapes, 2 * prod(shape) * side * side)


def _batch_norm(name: str, channels: int, side: int) -> Layer:
    return Layer(name, ((channels,), (channels,)), 2 * channels * side * side)


def _linear(name: str, inner: int, outer: int) -> Layer:
    return Layer(name, ((outer, inner), (outer,)), 2 * inner * outer)


def vgg19() -> Architecture:
    """VGG-19: 38 tensors, 143.67 million parameters, 71.5 % of them in one layer."""
    return Architecture("vgg19", tuple(_vgg19_layers()))


def _vgg19_layers() -> Iterator[Layer]:
    side, inner = IMAGE_SIDE, 3
    for block, (outer, repeats) in enumerate(((64, 2), (128, 2), (256, 4), (512, 4), (512, 4)), 1):
        for number in range(1, repeats + 1):
            yield _convolution(f"conv{block}_{number}", (inner, outer), 3, side, bias=True)
            inner = outer
        side //= 2
    yield _linear("fc6", inner * side * side, 4096)
    yield _linear("fc7", 4096, 4096)
    yield _linear("fc8", 4096, CLASSES)


def resnet50() -> Architecture:
    """ResNet-50: 161 tensors, 25.56 million parameters, batch norms included."""
    return Architecture("resnet50", tuple(_resnet50_layers()))


def _resnet50_layers() -> Iterator[Layer]:
    side = IMAGE_SIDE // 2
    yield _convolution("conv1", (3, 64), 7, side, bias=False)
    yield _batch_norm("bn1", 64, side)
    side //= 2
    inner = 64
    for stage, (width, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3)), 2):
        for block in range(blocks):
            before = side
            if block == 0 and stage > 2:
                side //= 2
            yield from _bottleneck(f"conv{stage}_{block + 1}", inner, width, (before, side))
            inner = 4 * width
    yield _linear("fc", inner, CLASSES)


def _bottleneck(name: str, inner: int, width: int, sides: tuple[int, int]) -> Iterator[Layer]:
    before, side = sides
    outer = 4 * width
    yield _convolution(f"{name}.1", (inner, width), 1, before, bias=False)
    yield _batch_norm(f"{name}.1n", width, before)
    yield _convolution(f"{name}.2", (width, width), 3, side, bias=False)
    yield _batch_norm(f"{name}.2n", width, side)
    yield _convolution(f"{name}.3", (width, outer), 1, side, bias=False)
    yield _batch_norm(f"{name}.3n", outer, side)
    if inner != outer:
        yield _convolution(f"{name}.s", (inner, outer), 1, side, bias=False)
        yield _batch_norm(f"{name}.sn", outer, side)
