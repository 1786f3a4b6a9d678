"""Which probes to send next, given what was answered so far. Pure.

First unmarked probes with growing TTL find the path, then every hop that answered is asked about
every DSCP. Routers limit how often they answer (Linux: bursts of 6, then one a second a target),
so a hop is asked again as long as each round brings something.
"""

from __future__ import annotations

from collections.abc import Iterable

from p3_agent.probe.values import END_TO_END, UNMARKED, Answer, Findings, Hop, Kind, Probe

TRIES = 3
"""Rounds in a row without anything new after which a hop is asked no more."""
WINDOW = 4
"""Hops looked for at a time: past the far end they cost it answers that it may limit."""
SILENT = 8
"""Hops in a row without an answer after which the path is taken to end."""


class Search:
    """One look at a path: `due` says what to send, `take` what came of it, until nothing is due."""

    def __init__(self, dscps: tuple[int, ...], max_hops: int) -> None:
        self._dscps = dscps
        self._max_hops = max_hops
        self._answers: dict[Probe, Answer] = {}
        self._idle: dict[int, int] = {}
        self._asked: set[int] = set()
        self._end: int | None = None
        self._reach = min(WINDOW, max_hops)
        self._tracing = True

    def due(self) -> tuple[Probe, ...]:
        """The next round; empty when all is known that can be."""
        while True:
            probes = tuple(probe for hops in self._rows() for probe in self._open(hops))
            if probes or not self._advance():
                self._asked = {probe.hops for probe in probes}
                return probes

    def take(self, answers: Iterable[Answer]) -> None:
        """What came back in this round, to whichever round's probes."""
        new = {self._note(answer) for answer in answers}
        for hops in self._asked:
            self._idle[hops] = 0 if hops in new else self._idle.get(hops, 0) + 1

    def findings(self, target: str) -> Findings:
        """All that is known."""
        last = self._last()
        return Findings(
            target,
            self._dscps,
            tuple(Hop(hops, self._row(hops)) for hops in range(1, last + 1)),
            Hop(self._end, self._row(END_TO_END)),
        )

    def _rows(self) -> list[int]:
        end = self._reach if self._end is None else min(self._reach, self._end - 1)
        return [*range(1, end + 1), END_TO_END]

    def _open(self, hops: int) -> list[Probe]:
        if self._idle.get(hops, 0) >= TRIES:
            return []
        wanted = (UNMARKED,) if self._tracing else (UNMARKED, *self._dscps)
        probes = [Probe(hops, dscp) for dscp in wanted]
        return [probe for probe in probes if probe not in self._answers]

    def _advance(self) -> bool:
        """Look further, or at the marks; False when both is done."""
        if not self._tracing:
            return False
        silent = self._reach - self._last()
        if self._end is not None or self._reach == self._max_hops or silent >= SILENT:
            self._tracing = False
        else:
            self._reach = min(self._reach + WINDOW, self._max_hops)
        return True

    def _note(self, answer: Answer) -> int | None:
        """Keep an answer; the hops of its probe if it is new."""
        probe = answer.probe
        if probe in self._answers:
            return None
        if answer.kind is not Kind.PASSED and probe.hops != END_TO_END:
            # As good as an answer to the probe that may go all the way.
            self._answers.setdefault(Probe(END_TO_END, probe.dscp), answer)
            if self._tracing:
                self._end = min(probe.hops, self._end or probe.hops)
        self._answers[probe] = answer
        return probe.hops

    def _last(self) -> int:
        """The last router: the one before the far end, or the last that answered."""
        if self._end is not None:
            return self._end - 1
        return max((probe.hops for probe in self._answers if probe.hops != END_TO_END), default=0)

    def _row(self, hops: int) -> dict[int, Answer]:
        return {probe.dscp: found for probe, found in self._answers.items() if probe.hops == hops}
