"""What a framework's shim may rely on: the parameter server itself pulls in no framework."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["p3", "p3.ps", "p3.agreement", "p3.schedule"])
def test_the_server_needs_neither_torch_nor_pyroute2(module: str) -> None:
    program = f"import sys, {module}; print({{'torch', 'pyroute2'}} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"
