"""Half the bytes: float16 (IEEE 754 binary16) and bfloat16, rounded to the nearest even."""

from __future__ import annotations

import numpy as np

from p3.codecs.codec import Bytes, Floats, State, Symmetric

_LARGEST_HALF = 65504.0


class Float16(Symmetric):
    """11 bits of precision; what is over its range becomes the largest there is, not infinite."""

    name = "fp16"

    def push_bytes(self, numel: int) -> int:
        """See Codec."""
        return 2 * numel

    def encode_push(self, values: Floats, state: State) -> Bytes:  # noqa: ARG002
        """See Codec."""
        finite = np.clip(values, -_LARGEST_HALF, _LARGEST_HALF)
        # Infinite is what GradScaler looks for: it stays.
        kept = np.where(np.isinf(values), values, finite)
        return kept.astype(np.float16).view(np.uint8)

    def decode_push(self, data: Bytes, numel: int) -> Floats:  # noqa: ARG002
        """See Codec."""
        return data.view(np.float16).astype(np.float32)


class BFloat16(Symmetric):
    """float32's range with 8 bits of precision: its upper half."""

    name = "bf16"

    def push_bytes(self, numel: int) -> int:
        """See Codec."""
        return 2 * numel

    def encode_push(self, values: Floats, state: State) -> Bytes:  # noqa: ARG002
        """See Codec."""
        bits = values.view(np.uint32)
        with np.errstate(over="ignore"):
            rounded = bits + (0x7FFF + ((bits >> 16) & 1)).astype(np.uint32)
        # A NaN's fraction may not be rounded away.
        upper = np.where(np.isnan(values), (bits >> 16) | 0x40, rounded >> 16)
        return upper.astype(np.uint16).view(np.uint8)

    def decode_push(self, data: Bytes, numel: int) -> Floats:  # noqa: ARG002
        """See Codec."""
        return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
