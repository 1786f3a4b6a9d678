"""Numbers as people read them: tables in plain text. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns side by side, the first to the left and the others to the right.

    ValueError when a row has not as many cells as the header.
    """
    for row in rows:
        if len(row) != len(header):
            raise ValueError(f"a row of {len(row)} cells under a header of {len(header)}: {row}")
    columns = list(zip(header, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    lines = [_line(header, widths), "  ".join("-" * width for width in widths)]
    lines += [_line(row, widths) for row in rows]
    return "\n".join(lines)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = zip(cells, widths, strict=True)
    padded = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]
    return "  ".join(padded).rstrip()


def seconds(value: float) -> str:
    """Like `0.437 s`."""
    return f"{value:.3f} s"


def times(value: float) -> str:
    """A ratio, like `1.31x`."""
    return f"{value:.2f}x"


def percent(part: float) -> str:
    """A part of 1, like `93 %`."""
    return f"{100 * part:.0f} %"
