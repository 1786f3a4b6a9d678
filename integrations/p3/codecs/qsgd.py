"""8-bit stochastic quantisation (QSGD, arXiv 1610.02132): unbiased, without memory.

Each bucket of 512 elements is scaled by its largest magnitude, which the QSGD paper names as the
choice of its experiments, and every element rounded up or down at random so that its mean stays.
"""

from __future__ import annotations

import numpy as np

from p3.codecs.codec import Bytes, Floats, State, Symmetric

BUCKET = 512
LEVELS = 127


class Qsgd(Symmetric):
    """A byte an element, and a float32 a bucket."""

    name = "qsgd8"

    def push_bytes(self, numel: int) -> int:
        """See Codec."""
        return numel + 4 * _buckets(numel)

    def encode_push(self, values: Floats, state: State) -> Bytes:
        """See Codec."""
        numel = len(values)
        rows = np.zeros((_buckets(numel), BUCKET), dtype=np.float32)
        rows.reshape(-1)[:numel] = values
        scales = np.abs(rows).max(axis=1, initial=0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            exact = rows / scales[:, None] * np.float32(LEVELS)
        exact[scales == 0] = 0
        noise = state.random.random(exact.shape, dtype=np.float32)
        levels = np.clip(np.floor(exact + noise), -LEVELS, LEVELS)
        # What is not a number shows in the scale, and makes the bucket so.
        whole = np.nan_to_num(levels, nan=0.0, posinf=0.0, neginf=0.0).astype(np.int8)
        return np.concatenate((scales.view(np.uint8), whole.reshape(-1)[:numel].view(np.uint8)))

    def decode_push(self, data: Bytes, numel: int) -> Floats:
        """See Codec."""
        head = 4 * _buckets(numel)
        scales = data[:head].view(np.float32)
        levels = data[head:].view(np.int8).astype(np.float32)
        return levels * np.repeat(scales / np.float32(LEVELS), BUCKET)[:numel]


def _buckets(numel: int) -> int:
    return -(-numel // BUCKET)
