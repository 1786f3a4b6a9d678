"""1-bit SGD with error feedback (Seide et al., Interspeech 2014): signs, and two means.

What a push loses is added to the slice's next one, so that nothing is lost for good.
"""

from __future__ import annotations

import numpy as np

from p3.codecs.codec import Bytes, Floats, State, Symmetric

_HEAD = 8


class OneBit(Symmetric):
    """A bit an element, and the means of what is below zero and of what is not."""

    name = "1bit"

    def push_bytes(self, numel: int) -> int:
        """See Codec."""
        return _HEAD + -(-numel // 8)

    def encode_push(self, values: Floats, state: State) -> Bytes:
        """See Codec."""
        error = state.of("error", len(values))
        wanted = values + error
        above = wanted >= 0
        means = np.array([_mean(wanted[~above]), _mean(wanted[above])], dtype=np.float32)
        data = np.concatenate((means.view(np.uint8), np.packbits(above)))
        np.subtract(wanted, self.decode_push(data, len(values)), out=error)
        return data

    def decode_push(self, data: Bytes, numel: int) -> Floats:
        """See Codec."""
        below, above = data[:_HEAD].view(np.float32)
        signs = np.unpackbits(data[_HEAD:], count=numel).astype(bool)
        values: Floats = np.where(signs, above, below).astype(np.float32)
        return values


def _mean(values: Floats) -> float:
    return float(values.mean(dtype=np.float64)) if len(values) else 0.0
