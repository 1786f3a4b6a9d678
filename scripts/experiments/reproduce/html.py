"""One self-contained page: pictures inside, tables, claims, how it was measured."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Sequence
from html import escape

from matplotlib.figure import Figure

from experiments.reproduce.claims import Claim
from experiments.reproduce.draw import DOTS_PER_INCH
from experiments.reproduce.pictures import Picture
from experiments.reproduce.summary import Row

_STYLE = (
    "body{font-family:sans-serif;max-width:75em;margin:2em auto;padding:0 1em}"
    "table{border-collapse:collapse;font-size:85%}td,th{padding:.2em .6em;border-bottom:1px solid "
    "#ddd;text-align:right}td:first-child,th:first-child{text-align:left}img{max-width:100%}"
    ".no{color:#b02020}"
)
HOW = (
    "Real kernel, real sockets, real training loop; each layer takes the time that a device would "
    "take, on a node that is a network namespace. Tensors, slices and link rates are the paper's "
    "divided by the scale that stands beside each number, so that their ratios are the paper's; "
    "throughput and Gbit/s are given in the paper's own units. Port buffers are not scaled. Slices "
    "have a least size, since a message costs a processor as much at any scale. Medians of repeats "
    "that took turns; every repeat is a dot."
)


def png(figure: Figure) -> bytes:
    """The picture as a file's bytes."""
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=DOTS_PER_INCH)
    return data.getvalue()


def page(
    machine: str, when: str, pictures: Sequence[tuple[Picture, bytes]], claims: Sequence[Claim]
) -> str:
    """The whole report."""
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><title>P3: the paper's figures</title>",
        f"<style>{_STYLE}</style><h1>The paper's figures, measured here</h1>",
        f"<p>{escape(when)}; {escape(machine)}.</p><p>{escape(HOW)}</p>",
        *_claims(claims),
    ]
    for picture, data in pictures:
        source = base64.b64encode(data).decode()
        parts.append(f"<h2>{escape(picture.title)}</h2>")
        parts.append(f'<img alt="{escape(picture.title)}" src="data:image/png;base64,{source}">')
        parts += _table(HEADER, [cells(row) for row in picture.rows])
    return "\n".join((*parts, "</html>\n"))


HEADER = (
    "setting",
    "system",
    "samples/s a machine",
    "spread",
    "of the bound",
    "mean Gbit/s",
    "idle",
    "CPU s",
    "emulated",
)


def cells(row: Row) -> tuple[str, ...]:
    """A row as text, for `HEADER`."""
    slices = f", slices of {row.slice_numel}" if row.system == "p3" else ""
    return (
        f"{row.model}, {row.nodes} nodes, {row.gbit:g} Gbit/s{slices}",
        row.title,
        f"{row.throughput:.1f}",
        f"{row.spread:.0%}",
        f"{row.of_bound:.0%}",
        f"{row.mean_gbit:.2f}",
        f"{row.idle:.0%}",
        f"{row.cpu_s:.2f}",
        row.emulated,
    )


def _claims(claims: Sequence[Claim]) -> Iterator[str]:
    if claims:
        yield "<h2>What it is to show</h2>"
        rows = [
            (
                claim.text,
                f"{claim.wanted:.2f}",
                f"{claim.found:.2f}",
                "yes" if claim.holds else "no",
            )
            for claim in claims
        ]
        yield from _table(("", "wanted", "found", "holds"), rows)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield "<table>"
    yield "<tr>" + "".join(f"<th>{escape(cell)}" for cell in header)
    for row in rows:
        mark = " class=no" if row[-1] == "no" else ""
        yield f"<tr{mark}>" + "".join(f"<td>{escape(cell)}" for cell in row)
    yield "</table>"
