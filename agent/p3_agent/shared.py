"""One answer for many who ask at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Shared(Generic[T]):
    """Carries `ask` out once for all who wait: an answer is never older than its question.

    However many ask, the one thing they ask about is busy with one of them at a time.
    """

    def __init__(self, ask: Callable[[], Awaitable[T]]) -> None:
        self._ask = ask
        self._turn = asyncio.Lock()
        self._begun = 0
        self._answer: T | None = None

    async def __call__(self) -> T:
        """What `ask` returns, or raises."""
        fresh = self._begun + 1
        async with self._turn:
            if self._answer is None or self._begun < fresh:
                self._begun += 1
                self._answer = None  # stays so if this raises
                self._answer = await self._ask()
            return self._answer
