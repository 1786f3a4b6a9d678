"""Findings and verdict for people and for programs. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict

import msgspec

from p3_agent.probe.values import UNMARKED, Findings, Hop
from p3_agent.probe.verdict import Verdict


def as_text(findings: Findings, verdict: Verdict) -> str:
    """A table of the DSCPs that each hop saw, remarks, and the verdict."""
    sent = (UNMARKED, *findings.dscps)
    rows = [("hop", "address", "unmarked", *map(str, findings.dscps))]
    rows += [_row(str(hop.number), hop, sent) for hop in findings.hops]
    rows.append(_row("far", findings.far, sent))
    return "\n".join((*_columns(rows), *_remarks(findings), "", verdict.sentence))


def as_json(findings: Findings, verdict: Verdict) -> str:
    """One JSON object; `survives` is null when it cannot be told."""
    whole = {
        "target": findings.target,
        "dscps": findings.dscps,
        "hops": [_hop(hop) for hop in findings.hops],
        "far": _hop(findings.far),
        "survives": verdict.survives,
        "verdict": verdict.sentence,
        "fates": [asdict(fate) for fate in verdict.fates],
    }
    return msgspec.json.format(msgspec.json.encode(whole), indent=2).decode()


def _row(name: str, hop: Hop, sent: Sequence[int]) -> tuple[str, ...]:
    cells = [str(hop.answers[dscp].dscp) if dscp in hop.answers else "-" for dscp in sent]
    return (name, ", ".join(hop.addresses) or "no answer", *cells)


def _columns(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, address, *cells in rows:
        values = (cell.rjust(width) for cell, width in zip(cells, widths[2:], strict=True))
        yield "  ".join((name.rjust(widths[0]), address.ljust(widths[1]), *values))


def _remarks(findings: Findings) -> Iterator[str]:
    kinds = dict.fromkeys(answer.kind for answer in findings.far.answers.values())
    if kinds:
        yield f"far: {', '.join(kinds)}"
    for hop in findings.hops:
        if len(hop.addresses) > 1:
            yield f"hop {hop.number}: several routers answer, so the path is not one"
    for hop in (*findings.hops, findings.far):
        marked = {answer.ecn for answer in hop.answers.values()} - {0}
        if marked:
            where = "far end" if hop is findings.far else f"hop {hop.number}"
            yield f"{where}: ECN bits arrive as {marked.pop():02b}, sent as 00 (RFC 3168)"
            return


def _hop(hop: Hop) -> dict[str, object]:
    return {
        "hop": hop.number,
        "answers": [
            {
                "sent": dscp,
                "seen": answer.dscp,
                "ecn": answer.ecn,
                "by": answer.by,
                "kind": answer.kind,
                "reason": answer.reason,
            }
            for dscp, answer in sorted(hop.answers.items())
        ],
    }
