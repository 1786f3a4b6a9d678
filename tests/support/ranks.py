"""Processes of one process group on loopback, for tests of the training side."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Timer
from types import MappingProxyType
from typing import Any

SUPPORT = Path(__file__).parent
WORLD_SIZE = 3
WORKERS = 2
"""Of the four ranks in tests of servers."""
LEAST_PORT = 10_000
WAIT_S = 120.0
"""Far beyond what a rank takes to answer: a hang fails, a busy machine does not."""


class Ranks:
    """Processes of one process group on loopback."""

    def __init__(self, processes: Sequence[subprocess.Popen[str]]) -> None:
        self.processes = processes

    def run(self, scenario: str, *arguments: object) -> list[dict[str, Any]]:
        """The scenario's result on every rank; fails with a rank's error output when it dies."""
        return self.tell(json.dumps([scenario, arguments]) + "\n")

    def tell(self, line: str) -> list[Any]:
        """Give every rank a line, get its answer."""
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(line)
            process.stdin.flush()
        return [self._answer(process) for process in self.processes]

    @staticmethod
    def _answer(process: subprocess.Popen[str]) -> dict[str, Any]:
        assert process.stdout is not None
        with ended_after(WAIT_S, process.kill):
            line = process.stdout.readline()
        assert line, f"a rank ended with status {process.wait(WAIT_S)}"
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def ended_after(seconds: float, end: Callable[[], None]) -> Iterator[None]:
    """Have `end` free what is done here, should it take so long."""
    timer = Timer(seconds, end)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def free_port() -> int:
    """Below those that the kernel gives by itself: nobody is given it before it is used."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        with socket.socket() as probe, suppress(OSError):
            port = random.randrange(LEAST_PORT, first)
            probe.bind(("127.0.0.1", port))
            return port


@contextmanager
def start_ranks(
    program: Path,
    arguments: Sequence[str] = (),
    world_size: int = WORLD_SIZE,
    *,
    python: Sequence[str] = (sys.executable, "-W", "error"),
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[list[subprocess.Popen[str]]]:
    """`program` once a rank, with pipes for stdin and stdout; killed at the end if still there."""
    port = free_port()
    with ExitStack() as exits:
        processes = []
        for rank in range(world_size):
            process = subprocess.Popen(
                [*python, str(program), *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={
                    **os.environ,
                    "PYTHONPATH": str(SUPPORT.parent),
                    "RANK": str(rank),
                    "WORLD_SIZE": str(world_size),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port),
                    "OMP_NUM_THREADS": "1",
                    "P3_AGENT_SOCKET": "/nonexistent/p3-agent.sock",
                    **environment,
                },
            )
            exits.enter_context(process)
            exits.callback(process.kill)
            processes.append(process)
        yield processes
