"""Many cases in one test, where what they share costs more than they do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def case(name: object) -> Iterator[None]:
    """Have a failure within tell which case it was."""
    try:
        yield
    except Exception as error:
        error.add_note(f"in the case {name}")
        raise
