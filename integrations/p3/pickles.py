"""Objects that ranks send each other before they know each other: only p3's own types are read."""

from __future__ import annotations

import io
import pickle

from p3.engine import P3Error

_MODULES = ("p3.", "p3_shaper.")


class _Unpickler(pickle.Unpickler):
    """A stranger's pickle could call anything."""

    def find_class(self, module: str, name: str) -> object:
        if not module.startswith(_MODULES):
            raise pickle.UnpicklingError(f"{module}.{name} is none of p3's types")
        return super().find_class(module, name)


def load(content: bytes | bytearray) -> object:
    """What pickle.dumps made. P3Error when it cannot be read, or is of another's types."""
    try:
        return _Unpickler(io.BytesIO(content)).load()
    except (pickle.UnpicklingError, EOFError, ValueError) as error:
        raise P3Error(f"what a rank sent at the start cannot be read: {error}") from error
