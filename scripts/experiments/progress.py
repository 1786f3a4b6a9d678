"""What a long run shows while it works."""

from __future__ import annotations

import sys
import time

from experiments.messages import Event, Iterated, Started

_LINES = 4
"""Lines a run, where the output is no terminal."""


class Progress:
    """Shows one run's events on standard error: in place on a terminal, else a few lines."""

    def __init__(self, title: str, iterations: int) -> None:
        self._title = title
        self._iterations = iterations
        self._in_place = sys.stderr.isatty()
        self._began: float | None = None
        self._show("starting", last=False)

    def __call__(self, event: Event) -> None:
        """Take what a rank told."""
        if isinstance(event, Started):
            if event.rank == 0:
                self._show("joining the other nodes", last=False)
        elif isinstance(event, Iterated):
            self._iterated(event)

    def _iterated(self, event: Iterated) -> None:
        now = time.monotonic()
        if self._began is None:
            self._began = now
        done = event.iteration + 1
        every = 1 if self._in_place else max(1, self._iterations // _LINES)
        if done % every and done != self._iterations:
            return
        pace = f", {(now - self._began) / (done - 1):.2f} s each" if done > 1 else ""
        text = f"iteration {done} of {self._iterations}{pace}, loss {event.loss:.4f}"
        self._show(text, last=done == self._iterations)

    def _show(self, text: str, *, last: bool) -> None:
        line = f"{self._title}: {text}"
        if self._in_place:
            line = f"\r\033[K{line}"
        print(line, end="" if self._in_place and not last else "\n", file=sys.stderr, flush=True)
