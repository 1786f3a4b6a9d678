"""Inception-v3 (arXiv 1512.00567) as MXNet's gluon model zoo builds it, without the auxiliary
classifier: 284 tensors, 23.83 million parameters. Pure.

For one image of 299x299. Every convolution is followed by a batch norm and has no bias. A cell's
branches stand one after the other, as the zoo runs them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from experiments.architectures import (
    CLASSES,
    Architecture,
    Layer,
    batch_norm,
    convolution,
    linear,
)

Kernel = int | tuple[int, int]
Chain = tuple[tuple[int, Kernel], ...]
"""Convolutions one after the other: (output channels, kernel)."""
Cell = tuple[Chain, ...]
"""Branches that all read the cell's input; a pooling one has only its convolution, if any."""

_ROW, _COLUMN = (1, 7), (7, 1)
_WIDE, _TALL = (1, 3), (3, 1)


def _a(pooled: int) -> Cell:
    return (((64, 1),), ((48, 1), (64, 5)), ((64, 1), (96, 3), (96, 3)), ((pooled, 1),))


def _c(width: int) -> Cell:
    return (
        ((192, 1),),
        ((width, 1), (width, _ROW), (192, _COLUMN)),
        ((width, 1), (width, _COLUMN), (width, _ROW), (width, _COLUMN), (192, _ROW)),
        ((192, 1),),
    )


_STEM: tuple[tuple[int, Kernel, int], ...] = (
    (32, 3, 149),
    (32, 3, 147),
    (64, 3, 147),
    (80, 1, 73),
    (192, 3, 71),
)
"""Output channels, kernel, side of the output."""

_CELLS: tuple[tuple[str, Cell, int, int, int], ...] = (
    ("a1", _a(32), 192, 35, 35),
    ("a2", _a(64), 256, 35, 35),
    ("a3", _a(64), 288, 35, 35),
    ("b", (((384, 3),), ((64, 1), (96, 3), (96, 3))), 288, 35, 17),
    ("c1", _c(128), 768, 17, 17),
    ("c2", _c(160), 768, 17, 17),
    ("c3", _c(160), 768, 17, 17),
    ("c4", _c(192), 768, 17, 17),
    ("d", (((192, 1), (320, 3)), ((192, 1), (192, _ROW), (192, _COLUMN), (192, 3))), 768, 17, 8),
)
"""Name, branches, input channels, side of the input, side of the output."""


def inception_v3() -> Architecture:
    """The network's layers in forward order."""
    return Architecture("inception_v3", tuple(_layers()))


def _layers() -> Iterator[Layer]:
    inner = 3
    for number, (outer, kernel, side) in enumerate(_STEM, 1):
        yield from _normed(f"stem{number}", (inner, outer), kernel, side)
        inner = outer
    for name, branches, channels, before, after in _CELLS:
        for number, chain in enumerate(branches, 1):
            # A cell that shrinks does so in the last convolution of each branch.
            sides = [before] * (len(chain) - 1) + [after]
            yield from _chain(f"{name}.{number}", channels, chain, sides)
    for name, channels in (("e1", 1280), ("e2", 2048)):
        yield from _forked(name, channels)
    yield linear("fc", 2048, CLASSES)


def _forked(name: str, channels: int) -> Iterator[Layer]:
    """The last cells, two of whose branches fork into a wide and a tall convolution."""
    side = 8
    yield from _chain(f"{name}.1", channels, ((320, 1),), [side])
    for branch, chain in ((2, ((384, 1),)), (3, ((448, 1), (384, 3)))):
        yield from _chain(f"{name}.{branch}", channels, chain, [side] * len(chain))
        yield from _normed(f"{name}.{branch}w", (384, 384), _WIDE, side)
        yield from _normed(f"{name}.{branch}t", (384, 384), _TALL, side)
    yield from _chain(f"{name}.4", channels, ((192, 1),), [side])


def _chain(
    name: str, inner: int, chain: Iterable[tuple[int, Kernel]], sides: Iterable[int]
) -> Iterator[Layer]:
    for number, ((outer, kernel), side) in enumerate(zip(chain, sides, strict=True), 1):
        yield from _normed(f"{name}.{number}", (inner, outer), kernel, side)
        inner = outer


def _normed(name: str, channels: tuple[int, int], kernel: Kernel, side: int) -> Iterator[Layer]:
    yield convolution(name, channels, kernel, side, bias=False)
    yield batch_norm(f"{name}n", channels[1], side)
