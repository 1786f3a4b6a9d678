"""Published networks as values: parameter shapes and work per layer. Pure; imports no torch.

Shapes and operations follow the networks' papers (VGG: arXiv 1409.1556, table 1, column E;
ResNet: arXiv 1512.03385, table 1) for one image of 224x224. Inception-v3 and a translation model
are in modules of their own.
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


def convolution(
    name: str, channels: tuple[int, int], kernel: int | tuple[int, int], side: int, *, bias: bool
) -> Layer:
    """A convolution from channels[0] to channels[1] whose output is `side` x `side`.

    `kernel` is a side, or height and width.
    """
    inner, outer = channels
    shape = (outer, inner, *((kernel, kernel) if isinstance(kernel, int) else kernel))
    shapes = (shape, (outer,)) if bias else (shape,)
    return Layer(name, shapes, 2 * prod(shape) * side * side)


def batch_norm(name: str, channels: int, side: int) -> Layer:
    """Scale and shift of `channels` planes of `side` x `side`."""
    return Layer(name, ((channels,), (channels,)), 2 * channels * side * side)


def linear(name: str, inner: int, outer: int) -> Layer:
    """A fully connected layer with a bias."""
    return Layer(name, ((outer, inner), (outer,)), 2 * inner * outer)


def vgg19() -> Architecture:
    """VGG-19: 38 tensors, 143.67 million parameters, 71.5 % of them in one layer."""
    return Architecture("vgg19", tuple(_vgg19_layers()))


def _vgg19_layers() -> Iterator[Layer]:
    side, inner = IMAGE_SIDE, 3
    for block, (outer, repeats) in enumerate(((64, 2), (128, 2), (256, 4), (512, 4), (512, 4)), 1):
        for number in range(1, repeats + 1):
            yield convolution(f"conv{block}_{number}", (inner, outer), 3, side, bias=True)
            inner = outer
        side //= 2
    yield linear("fc6", inner * side * side, 4096)
    yield linear("fc7", 4096, 4096)
    yield linear("fc8", 4096, CLASSES)


def resnet50() -> Architecture:
    """ResNet-50 as in torchvision: 161 tensors, 25.56 million parameters, batch norms included.

    The stride is on a block's 3x3 convolution; none has a bias.
    """
    return Architecture("resnet50", tuple(_resnet50_layers(gluon=False)))


def resnet50_v1() -> Architecture:
    """ResNet-50 as in MXNet's gluon model zoo: 193 tensors, 25.58 million parameters.

    The stride is on a block's first convolution; its first and its last have biases.
    """
    return Architecture("resnet50_v1", tuple(_resnet50_layers(gluon=True)))


def _resnet50_layers(*, gluon: bool) -> Iterator[Layer]:
    side = IMAGE_SIDE // 2
    yield convolution("conv1", (3, 64), 7, side, bias=False)
    yield batch_norm("bn1", 64, side)
    side //= 2
    inner = 64
    for stage, (width, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3)), 2):
        for block in range(blocks):
            before = side
            if block == 0 and stage > 2:
                side //= 2
            sides = (side if gluon else before, side)
            name = f"conv{stage}_{block + 1}"
            yield from _bottleneck(name, inner, width, sides, bias=gluon)
            inner = 4 * width
    yield linear("fc", inner, CLASSES)


def _bottleneck(
    name: str, inner: int, width: int, sides: tuple[int, int], *, bias: bool
) -> Iterator[Layer]:
    first, side = sides
    outer = 4 * width
    yield convolution(f"{name}.1", (inner, width), 1, first, bias=bias)
    yield batch_norm(f"{name}.1n", width, first)
    yield convolution(f"{name}.2", (width, width), 3, side, bias=False)
    yield batch_norm(f"{name}.2n", width, side)
    yield convolution(f"{name}.3", (width, outer), 1, side, bias=bias)
    yield batch_norm(f"{name}.3n", outer, side)
    if inner != outer:
        yield convolution(f"{name}.s", (inner, outer), 1, side, bias=False)
        yield batch_norm(f"{name}.sn", outer, side)
