"""What a run leaves in its folder: numbers and pictures, the page, the table of claims."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path

import msgspec

from experiments.reproduce import html
from experiments.reproduce.claims import Claim, band_claims, claims
from experiments.reproduce.pictures import Picture, as_csv, pictures
from experiments.reproduce.points import Measurement, Point
from experiments.reproduce.summary import summarize


def machine() -> str:
    """Processors, kernel, Python, torch: what numbers depend on."""
    import torch  # noqa: PLC0415 - slow, and only its version is asked for

    return (
        f"{os.cpu_count()} processor cores ({platform.machine()}), Linux {platform.release()}, "
        f"Python {platform.python_version()}, torch {torch.__version__}"
    )


def write(
    out: Path, figures: Mapping[str, Sequence[Point]], measurements: Sequence[Measurement]
) -> list[Path]:
    """JSON, CSV and PNG a figure and port buffer, `report.html`, `results.md`; their paths."""
    summary = summarize(measurements)
    shown = []
    written: list[Path] = []
    for name, points in figures.items():
        rows = summary.of(points)
        for picture in pictures(name, rows, measurements):
            data = html.png(picture.figure)
            shown.append((picture, data))
            for ending, content in (
                ("png", data),
                ("csv", as_csv(picture.rows).encode()),
                ("json", msgspec.json.format(msgspec.json.encode(picture.rows), indent=1)),
            ):
                written.append(out / f"{picture.name}.{ending}")
                written[-1].write_bytes(content)
    # Figure 7's setting: the machines of figure 10 compute at another speed.
    found = claims(summary.of(figures.get("fig7", ())))
    found += band_claims(summary.of(figures.get("bands", ())))
    when = date.today().isoformat()
    written += [out / "report.html", out / "results.md"]
    written[-2].write_text(html.page(machine(), when, shown, found), encoding="utf-8")
    written[-1].write_text(
        _results(found, when, [picture for picture, _ in shown]), encoding="utf-8"
    )
    return written


def _results(found: Sequence[Claim], when: str, shown: Sequence[Picture]) -> str:
    lines = ["# What the experiments show", "", f"{when}; {machine()}. {html.HOW}", ""]
    if found:
        rows = [
            (
                claim.text,
                f"{claim.wanted:.2f}",
                f"{claim.found:.2f}",
                "yes" if claim.holds else "**no**",
            )
            for claim in found
        ]
        lines += ["Ports of 256 KB:", "", *_table(("", "wanted", "found", "holds"), rows), ""]
    for picture in shown:
        measured = [html.cells(row) for row in picture.rows]
        lines += [f"## {picture.title}", "", *_table(html.HEADER, measured), ""]
    return "\n".join(lines)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    for cells in (header, ("---",) * len(header), *rows):
        yield "| " + " | ".join(cells) + " |"
