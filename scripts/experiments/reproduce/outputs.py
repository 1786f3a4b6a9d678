"""What a run leaves in its folder: numbers and pictures, the page, the table of claims."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path

import msgspec

from experiments.reproduce import html
from experiments.reproduce.claims import Claim, claims
from experiments.reproduce.pictures import as_csv, pictures
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
    when = date.today().isoformat()
    written += [out / "report.html", out / "results.md"]
    written[-2].write_text(html.page(machine(), when, shown, found), encoding="utf-8")
    written[-1].write_text(_results(found, when), encoding="utf-8")
    return written


def _results(found: Sequence[Claim], when: str) -> str:
    lines = [
        "# What the experiments show",
        "",
        f"{when}; {machine()}. {html.HOW} Ports of 256 KB.",
        "",
        "| | wanted | found | holds |",
        "| --- | --- | --- | --- |",
    ]
    lines += [
        f"| {claim.text} | {claim.wanted:.2f} | {claim.found:.2f} | "
        f"{'yes' if claim.holds else '**no**'} |"
        for claim in found
    ]
    return "\n".join(lines) + "\n"
