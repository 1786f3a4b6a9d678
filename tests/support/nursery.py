"""Ranks forked from one process that has loaded torch: a case costs a second in place of ten."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import IO

from support.ranks import SUPPORT, WAIT_S, ended_after, free_port

REQUEST_BYTES = 1 << 16
PIPE_BYTES = 1 << 12
"""A page, the least: ranks soon wait for someone to read, in place of training for nobody."""
PIPE_LINES = 4
"""As many of what they say of an iteration fit."""


class Forked:
    """A rank; `output` ends when its process does."""

    def __init__(self, pid: int, output: IO[str]) -> None:
        self.pid = pid
        self.output = output

    def hears(self, start: str) -> str:
        """The next line that starts so; fails when there is none."""
        said = []
        with self._bounded():
            for line in self.output:
                if line.startswith(start):
                    return line.rstrip("\n")
                said.append(line)
        raise AssertionError(f"no {start!r} in the last of {said[-3:]}")

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def last_words(self) -> list[str]:
        """All that it says until its end but that it trained."""
        with self._bounded():
            return [line.rstrip("\n") for line in self.output if not line.startswith("trained")]

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def _bounded(self) -> AbstractContextManager[None]:
        return ended_after(WAIT_S, self.kill)


class Nursery:
    """The process that forks; use `family` to start ranks."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel

    @contextmanager
    def family(
        self,
        story: str,
        *arguments: object,
        size: int = 4,
        environment: Mapping[str, str] = MappingProxyType({}),
        namespaces: Sequence[str] = (),
    ) -> Iterator[list[Forked]]:
        """`size` ranks that each do `story` of `support.mortal`; killed at the end.

        Rank r is in network namespace `namespaces[r]`, if there are any.
        """
        common = {
            "WORLD_SIZE": str(size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            **environment,
        }
        with ExitStack() as exits:
            ranks = []
            for rank in range(size):
                request = {
                    "environment": {**common, "RANK": str(rank)},
                    "namespace": namespaces[rank] if namespaces else None,
                    "story": [story, *arguments],
                }
                forked = self._fork(request)
                exits.callback(_end, forked)
                ranks.append(forked)
            yield ranks

    def _fork(self, request: object) -> Forked:
        out, into = os.pipe()
        fcntl.fcntl(into, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        socket.send_fds(self._channel, [json.dumps(request).encode()], [into])
        os.close(into)
        pid = int(self._channel.recv(REQUEST_BYTES))
        return Forked(pid, os.fdopen(out, encoding="utf-8", errors="replace"))


def _end(forked: Forked) -> None:
    forked.kill()
    forked.output.close()


@contextmanager
def nursery(program: Path = SUPPORT / "mortal.py") -> Iterator[Nursery]:
    """Loads torch."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(WAIT_S)
    with ours, theirs:
        mother = subprocess.Popen(
            [sys.executable, "-W", "error", str(program), str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env={
                **os.environ,
                "PYTHONPATH": str(SUPPORT.parent),
                "OMP_NUM_THREADS": "1",
                "P3_AGENT_SOCKET": "/nonexistent/p3-agent.sock",
            },
        )
        theirs.close()
        with mother:
            try:
                yield Nursery(ours)
            finally:
                ours.close()
