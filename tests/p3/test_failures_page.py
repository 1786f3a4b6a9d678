"""docs/failures.md names every exception, and nothing that there is not."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "integrations/p3").rglob("*.py"))
PAGE = (ROOT / "docs/failures.md").read_text(encoding="utf-8")
CLASSES = ("P3Error", "PeerLostError", "PlanMismatchError")
BETWEEN_RANKS = {
    *("agreement", "default_group", "exchange", "groups", "hosts", "members", "mesh", "pickles"),
    *("ps", "rendezvous", "servers", "star", "star_door", "transport", "updating"),
}
"""Modules whose messages tell of other ranks; those of a refused call speak for themselves."""
GAP = "…"


def text_of(node: ast.AST) -> str:
    """What a message says, with a gap for whatever is put in."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(value) for value in node.values)
    if isinstance(node, ast.BinOp):
        return text_of(node.left) + text_of(node.right)
    return GAP


def raised() -> Iterator[tuple[Path, str, str]]:
    """File, class and text of every exception that is made with a text of its own."""
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
                yield path, node.func.id, text_of(node.args[-1])


def documented() -> list[re.Pattern[str]]:
    """The messages of the page, each a pattern for what is in the source."""
    cells = re.findall(r"^\| `([^`]+)` \| [^|]+ \| [^|]+ \|$", PAGE, re.MULTILINE)
    split = [[part.strip() for part in cell.split(GAP)] for cell in cells]
    return [re.compile(".*".join(re.escape(part) for part in parts if part)) for parts in split]


def test_the_page_names_every_class() -> None:
    bases = r"class (\w+)\((?:P3Error|RuntimeError|UserWarning)\)"
    names = {name for path in SOURCES for name in re.findall(bases, path.read_text("utf-8"))}
    assert {"PeerLostError", "OverlapWarning"} <= names
    assert not {name for name in names if f"| `{name}` |" not in PAGE}


def test_the_page_explains_every_message_between_ranks() -> None:
    patterns = documented()
    assert len(patterns) > 30
    unknown = [
        (path.name, text)
        for path, kind, text in raised()
        if path.stem in BETWEEN_RANKS and kind in CLASSES and len(text.replace(GAP, "")) > 12
        if not any(pattern.search(text) for pattern in patterns)
    ]
    assert not unknown


def test_every_message_on_the_page_is_in_the_source() -> None:
    said = "\n".join(re.sub(r'"\s*f?"', "", path.read_text(encoding="utf-8")) for path in SOURCES)
    said = re.sub(r"\s+", " ", said)
    stray = [
        pattern.pattern
        for pattern in documented()
        for part in pattern.pattern.split(".*")
        if not re.search(part, said)
    ]
    assert not stray
