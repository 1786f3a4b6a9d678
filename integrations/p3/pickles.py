"""Objects that ranks send each other before they know each other: only p3's own types are read."""

from __future__ import annotations

import io
import pickle

from p3.engine import P3Error

_MODULES = ("p3.", "p3_shaper.")


class _Unpickler(pickle.Unpickler):
    """A stranger's pickle could call anything."""

    def find_class(self, module: str, name: str) -> object:
        # A dotted name would lead from p3's modules to all that they import.
        if module.startswith(_MODULES) and "." not in name:
            found = super().find_class(module, name)
            if isinstance(found, type) and found.__module__ == module:
                return found
        raise pickle.UnpicklingError(f"{module}.{name} is none of p3's types")


def load(content: bytes | bytearray) -> object:
    """What pickle.dumps made. P3Error when it cannot be read, or is of another's types."""
    try:
        return _Unpickler(io.BytesIO(content)).load()
    except (pickle.UnpicklingError, EOFError, ValueError, AttributeError, ImportError) as error:
        raise P3Error(f"what a rank sent at the start cannot be read: {error}") from error
