"""Payloads as engines see them: bytes, and for each dtype a way to add one to another.

Engines know no framework. numpy adds what the processor can; a shim brings the rest (bfloat16).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
"""One payload: 1-D, contiguous, writable, aligned for its dtype."""

Add = Callable[[Bytes, Bytes], None]
"""Adds the second to the first, element by element, in place; both of one dtype and size."""


def add_in_numpy(dtype: str) -> Add:
    """Addition of numpy's `dtype` ("float32"), in the calling thread."""
    kind = np.dtype(dtype)

    def add(total: Bytes, addend: Bytes) -> None:
        values = total.view(kind)
        # A gradient that overflows is the training's own affair (loss scaling expects it).
        with np.errstate(all="ignore"):
            np.add(values, addend.view(kind), out=values)

    return add
