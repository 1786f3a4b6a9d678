"""Processes that train with MXNet, from the environment that `scripts/setup --mxnet` makes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from support.ranks import free_port, start_ranks

PYTHON = Path(__file__).parents[2] / ".venv-mxnet" / "bin" / "python"


def start_mxnet(
    program: Path,
    world_size: int,
    environment: Mapping[str, str] | None = None,
    arguments: Sequence[str] = (),
) -> AbstractContextManager[list[subprocess.Popen[str]]]:
    """`program` once a rank under MXNet; see `start_ranks`."""
    assert PYTHON.exists(), f"no {PYTHON}: run scripts/setup --mxnet"
    return start_ranks(
        program,
        arguments,
        world_size=world_size,
        python=[str(PYTHON), "-W", "ignore"],
        environment={"MXNET_CPU_WORKER_NTHREADS": "1", **(environment or {})},
    )


@contextmanager
def dist_sync_roles(workers: int) -> Iterator[dict[str, str]]:
    """A scheduler and as many servers as workers of MXNet's own store; a worker's environment."""
    common = {
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(free_port()),
        "DMLC_NUM_WORKER": str(workers),
        "DMLC_NUM_SERVER": str(workers),
        "DMLC_NODE_HOST": "127.0.0.1",
        "DMLC_INTERFACE": "lo",
    }
    with ExitStack() as exits:
        for role in ("scheduler", *["server"] * workers):
            process = subprocess.Popen(
                [str(PYTHON), "-W", "ignore", "-c", "import mxnet"],
                env={**os.environ, **common, "DMLC_ROLE": role, "OMP_NUM_THREADS": "1"},
            )
            exits.callback(process.wait)
            exits.callback(process.kill)
        yield {**common, "DMLC_ROLE": "worker"}
