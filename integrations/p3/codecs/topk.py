"""Top-k with momentum correction (Deep Gradient Compression, arXiv 1712.01887, algorithm 4).

A worker sends the largest of what it has gathered, and gathers the rest on; momentum is applied
before gathering, and both forget what was sent (momentum factor masking). The user's optimizer
then has no momentum of its own. A sum holds all that any worker sent, exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from p3.codecs.codec import Bytes, Floats, State

_ENTRY = 8
"""An index and a value, 4 bytes each."""


@dataclass(frozen=True, slots=True)
class TopK:
    """The largest `ratio` of a slice's elements, at least one."""

    ratio: float = 0.01
    momentum: float = 0.9
    name: str = "topk"

    def push_bytes(self, numel: int) -> int:
        """See Codec."""
        return _ENTRY * self._count(numel)

    def sum_bytes(self, numel: int, workers: int) -> int:
        """See Codec. As many as all workers may have sent, but never more than all."""
        return _ENTRY * min(numel, workers * self._count(numel))

    def encode_push(self, values: Floats, state: State) -> Bytes:
        """See Codec."""
        velocity = state.of("velocity", len(values))
        gathered = state.of("gathered", len(values))
        velocity *= np.float32(self.momentum)
        velocity += values
        gathered += velocity
        chosen = _largest(gathered, self._count(len(values)))
        data = _entries(chosen, gathered)
        gathered[chosen] = 0
        velocity[chosen] = 0
        return data

    def decode_push(self, data: Bytes, numel: int) -> Floats:
        """See Codec."""
        return _spread(data, numel)

    def encode_sum(self, values: Floats, workers: int, state: State) -> Bytes:  # noqa: ARG002
        """See Codec."""
        count = min(len(values), workers * self._count(len(values)))
        return _entries(_largest(values, count), values)

    def decode_sum(self, data: Bytes, numel: int, workers: int) -> Floats:  # noqa: ARG002
        """See Codec."""
        return _spread(data, numel)

    def _count(self, numel: int) -> int:
        return min(numel, max(1, round(self.ratio * numel)))


def _largest(values: Floats, count: int) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    """Places of the `count` largest magnitudes, in order of place; what is no number first."""
    size = np.abs(values)
    size[np.isnan(size)] = np.inf
    if count >= len(values):
        return np.arange(len(values), dtype=np.uint32)
    return np.sort(np.argpartition(size, -count)[-count:]).astype(np.uint32) if count else _NONE


_NONE = np.zeros(0, dtype=np.uint32)


def _entries(places: np.ndarray[tuple[int], np.dtype[np.uint32]], values: Floats) -> Bytes:
    return np.concatenate((places.view(np.uint8), values[places].view(np.uint8)))


def _spread(data: Bytes, numel: int) -> Floats:
    half = len(data) // 2
    places = data[:half].view(np.uint32)
    if len(places) and int(places.max()) >= numel:
        raise ValueError(f"element {int(places.max())} of {numel}")
    values = np.zeros(numel, dtype=np.float32)
    values[places] = data[half:].view(np.float32)
    return values
