"""Waiting for many child processes at once: their lines, and their ends."""

from __future__ import annotations

import os
import selectors
import subprocess
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Self

GRACE_S = 10.0
"""Seconds between asking a child to end and killing it."""
_CHUNK = 65536
_LOG_TAIL = 20


@dataclass(eq=False, slots=True)
class Child:
    """A child process whose standard output is a pipe of ours and whose errors go to `log`."""

    title: str
    process: subprocess.Popen[str]
    output: IO[str]
    log: Path
    _rest: bytes = field(default=b"", init=False)

    def read(self) -> list[str] | None:
        """The complete lines that are there; None at the end of the output."""
        data = os.read(self.output.fileno(), _CHUNK)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if not data:
            return None
        return [line.decode("utf-8", "replace") for line in lines]

    def last_words(self) -> str:
        """The last line of the child's error output, or a word that there is none."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").split("\n")[-_LOG_TAIL:]
        said = [line.strip() for line in lines if line.strip()]
        return said[-1] if said else "it said nothing"


@dataclass(frozen=True, slots=True)
class Line:
    """A child wrote a line."""

    child: Child
    text: str


@dataclass(frozen=True, slots=True)
class Ended:
    """A child, and whoever shared its output, has ended; `status` as Popen.returncode has it."""

    child: Child
    status: int


class Watch:
    """Children to wait for; leaving the block ends those that still run."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._children: list[Child] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.end(self._children)
        finally:
            self._selector.close()

    def add(self, title: str, process: subprocess.Popen[str], log: Path) -> Child:
        """Watch `process`, started with stdout=PIPE; its output is the watch's from now on."""
        assert process.stdout is not None
        child = Child(title, process, process.stdout, log)
        self._children.append(child)
        self._selector.register(child.output, selectors.EVENT_READ, child)
        return child

    def wait(self, patience_s: float) -> list[Line | Ended]:
        """What has happened, once something has; empty after `patience_s` without any event."""
        deadline = time.monotonic() + patience_s
        happened: list[Line | Ended] = []
        # Part of a line is no event yet.
        while not happened and (ready := self._selector.select(deadline - time.monotonic())):
            happened += (event for key, _ in ready for event in self._read(key))
        return happened

    def _read(self, key: selectors.SelectorKey) -> Iterator[Line | Ended]:
        child: Child = key.data
        lines = child.read()
        if lines is not None:
            yield from (Line(child, line) for line in lines)
            return
        self._selector.unregister(child.output)
        child.output.close()
        # Its output ended, so it is about to end; a child that closed it early is still ended.
        yield Ended(child, _status(child.process, GRACE_S))

    def end(self, children: Iterable[Child]) -> list[Ended]:
        """Ask `children` to end (SIGTERM), kill those that do not, and forget them all."""
        going = list(children)
        for child in going:
            if child.process.poll() is None:
                child.process.terminate()
        deadline = time.monotonic() + GRACE_S
        ended = []
        for child in going:
            status = _status(child.process, max(0.0, deadline - time.monotonic()))
            if not child.output.closed:
                self._selector.unregister(child.output)
                child.output.close()
            ended.append(Ended(child, status))
        self._children = [child for child in self._children if child not in going]
        return ended


def _status(process: subprocess.Popen[str], grace_s: float) -> int:
    try:
        return process.wait(grace_s)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
