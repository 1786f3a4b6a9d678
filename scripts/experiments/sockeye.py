"""A translation model like the paper's Sockeye: LSTMs with attention on IWSLT15 en-vi. Pure.

The paper's figure of parameters by layer gives the sizes: 37 tensors, about 27.7 million elements:
vectors of 512 for each of 17,191 and 7,709 words, one matrix of 2.1 million, eight of 1.05, one of
0.5, one of 0.003. Which module has which, and the small tensors, are a guess at its configuration.
"""

from __future__ import annotations

from experiments.architectures import Architecture, Layer

_SOURCE, _TARGET, _WIDTH = 17_191, 7_709, 512
_GATES = 4 * _WIDTH
_TOKENS = 25
"""Words of a sentence."""

_NORM = ((_WIDTH,), (_WIDTH,))


def _lstm(inner: int) -> tuple[tuple[int, ...], ...]:
    return ((_GATES, inner), (_GATES,), (_GATES, _WIDTH), (_GATES,), *_NORM)


_TABLE: tuple[tuple[str, tuple[tuple[int, ...], ...]], ...] = (
    ("source_embedding", ((_SOURCE, _WIDTH),)),
    ("encoder.lstm1", _lstm(_WIDTH)),
    ("encoder.lstm2", _lstm(_WIDTH)),
    ("target_embedding", ((_TARGET, _WIDTH),)),
    ("decoder.lstm1", _lstm(2 * _WIDTH)),
    ("decoder.lstm2", _lstm(_WIDTH)),
    ("attention", ((2 * _WIDTH, _WIDTH), (6 * _WIDTH,), (_WIDTH,), *_NORM)),
    ("hidden", ((2 * _WIDTH, 2 * _WIDTH), (2 * _WIDTH,), *_NORM)),
    ("output", ((_TARGET, _WIDTH), (_TARGET,))),
)
"""Modules in forward order, and the shapes of their tensors."""


def sockeye() -> Architecture:
    """The model's layers; operations are those of one sentence."""
    return Architecture("sockeye", tuple(_layer(*row) for row in _TABLE))


def _layer(name: str, shapes: tuple[tuple[int, ...], ...]) -> Layer:
    layer = Layer(name, shapes, 0)
    # A word's vector is looked up; every other element is multiplied once a word.
    flops = 0 if name.endswith("embedding") else 2 * layer.numel * _TOKENS
    return Layer(name, shapes, flops)
