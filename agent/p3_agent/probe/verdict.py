"""What the answers say of each mark. Pure.

A hop quotes a packet as it was when its TTL ran out: after what the hop itself rewrites as packets
come in, before what it rewrites as it sends them on. So a value that is new at one hop was written
by that hop as it received, by the one before as it sent, or by what lies between and never answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from p3_agent.probe.values import UNMARKED, Answer, Findings, Kind


class Outcome(StrEnum):
    """What becomes of one mark."""

    SURVIVES = "survives"
    REWRITTEN = "rewritten"
    LOST = "lost"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Place:
    """Somewhere on the path: `hop` 0 is this host, None the far end."""

    hop: int | None
    address: str = ""

    def __str__(self) -> str:
        if self.hop == 0:
            return "this host"
        return f"{'the far end' if self.hop is None else f'hop {self.hop}'} ({self.address})"


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of path: `silent` hops between `before` and `after` showed nothing."""

    before: Place
    after: Place
    silent: tuple[int, ...]

    def __str__(self) -> str:
        who = [f"{_short(self.before)} sending"]
        if self.silent:
            hops = ", ".join(map(str, self.silent))
            who.append(f"hop {hops} (no answer)")
        who.append(f"{_short(self.after)} receiving, or what lies between unseen")
        return f"between {self.before} and {self.after}: {', '.join(who)}"


@dataclass(frozen=True, slots=True)
class Fate:
    """What becomes of one mark.

    `seen` is the last DSCP that was seen of it and `last` where; `span` is where it first changed.
    """

    dscp: int
    outcome: Outcome
    seen: int
    last: Place
    span: Span | None
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`survives` is None when it cannot be told; `sentence` says where and why."""

    survives: bool | None
    sentence: str
    fates: tuple[Fate, ...]


def judge(findings: Findings) -> Verdict:
    """The verdict on a path."""
    fates = tuple(_fate(findings, dscp) for dscp in findings.dscps)
    outcomes = {fate.outcome for fate in fates}
    if outcomes & {Outcome.REWRITTEN, Outcome.LOST}:
        survives, opening = False, f"marks do not survive to {findings.target}"
    elif Outcome.UNKNOWN in outcomes:
        survives, opening = None, f"cannot tell whether marks survive to {findings.target}"
    else:
        survives, opening = True, f"marks survive to {findings.target}"
    return Verdict(survives, f"{opening}: {'; '.join(_clauses(fates))}", fates)


def _fate(findings: Findings, dscp: int) -> Fate:
    sightings = [
        (Place(hop.number, hop.answers[dscp].by), hop.answers[dscp])
        for hop in findings.hops
        if dscp in hop.answers
    ]
    far = findings.far.answers.get(dscp)
    if far is not None and far.arrived:
        sightings.append((Place(None, far.by), far))
    places = [Place(0), *(place for place, _ in sightings)]
    seen = [dscp, *(answer.dscp for _, answer in sightings)]
    change = next((index for index, value in enumerate(seen) if value != dscp), None)
    span = None if change is None else _span(findings, places[change - 1], places[change])
    outcome = _outcome(findings, dscp, seen[-1], far)
    refused = far is not None and far.kind is Kind.REFUSED
    refusal = f"{far.by} refused it ({far.reason})" if far and refused else ""
    return Fate(dscp, outcome, seen[-1], places[-1], span, refusal)


def _outcome(findings: Findings, dscp: int, seen: int, far: Answer | None) -> Outcome:
    if seen != dscp:
        return Outcome.REWRITTEN
    if far is not None and far.arrived:
        return Outcome.SURVIVES
    unmarked = findings.far.answers.get(UNMARKED)
    return Outcome.LOST if unmarked is not None and unmarked.arrived else Outcome.UNKNOWN


def _span(findings: Findings, before: Place, after: Place) -> Span:
    start = before.hop or 0
    stop = len(findings.hops) + 1 if after.hop is None else after.hop
    return Span(before, after, tuple(range(start + 1, stop)))


def _clauses(fates: Sequence[Fate]) -> Iterable[str]:
    """One clause for all marks with the same fate, the worst first."""
    order = [Outcome.REWRITTEN, Outcome.LOST, Outcome.UNKNOWN, Outcome.SURVIVES]
    groups: dict[str, list[int]] = {}
    for fate in sorted(fates, key=lambda fate: order.index(fate.outcome)):
        groups.setdefault(_words(fate), []).append(fate.dscp)
    for words, dscps in groups.items():
        yield f"DSCP {', '.join(map(str, dscps))} {words}"


def _words(fate: Fate) -> str:
    if fate.outcome is Outcome.REWRITTEN:
        end = "" if fate.last.hop is None else f"; what answered last is {fate.last}"
        return f"turned into {fate.seen} {fate.span}{end}"
    if fate.outcome is Outcome.SURVIVES:
        detour = "" if fate.span is None else f", though rewritten on the way {fate.span}"
        return f"arrived as sent{detour}"
    start = f"came as sent to {fate.last}, and then "
    if fate.refusal:
        return f"{start}{fate.refusal}"
    if fate.outcome is Outcome.LOST:
        return (
            f"{start}nothing answered, though unmarked probes were: what has this mark is dropped"
        )
    advice = "run `p3-agent probe --listen` there, or choose a --port that firewalls let pass"
    return f"{start}nothing answered: {advice}"


def _short(place: Place) -> str:
    if place.hop == 0:
        return "this host"
    return "the far end" if place.hop is None else f"hop {place.hop}"
