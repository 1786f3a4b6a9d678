"""P3: gradient slices leave most urgent first, and the kernel keeps them in that order."""

from __future__ import annotations

import importlib
from types import ModuleType

_FRAMEWORKS = ("mxnet", "pytorch")


def __getattr__(name: str) -> ModuleType:
    """`p3.pytorch` and `p3.mxnet` on first use, so that `import p3` pulls in no framework."""
    if name in _FRAMEWORKS:
        return importlib.import_module(f"p3.{name}")
    raise AttributeError(f"module 'p3' has no attribute {name!r}")
