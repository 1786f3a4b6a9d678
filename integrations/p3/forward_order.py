"""Forward order, found by watching one forward pass; never by name or registration order.

A layer is a module that owns parameters, in the order of first use. Some modules' parameters are
used though their forward is never called (MultiheadAttention reads out_proj.weight itself): the
nearest enclosing module that is called waits for these.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True, slots=True)
class ForwardOrder:
    """`layer_of[i]` is parameter i's place in forward order, its earliest user counting.

    `starts[l]` is when layer l began, in seconds from the pass's begin. `waits[module]` names the
    parameters that the module's forward must wait for.
    """

    layer_of: tuple[int, ...]
    starts: tuple[float, ...]
    waits: dict[nn.Module, tuple[int, ...]]


class ForwardWatch:
    """Collects which modules a forward pass calls, in order.

    Modules in `waiting` wait for something besides, which has the number after the parameters'.
    """

    def __init__(
        self,
        model: nn.Module,
        parameters: Sequence[nn.Parameter],
        waiting: Collection[nn.Module] = (),
    ) -> None:
        self._model = model
        number = {id(parameter): index for index, parameter in enumerate(parameters)}
        self._owned = {
            module: tuple(
                number[id(parameter)]
                for parameter in module.parameters(recurse=False)
                if id(parameter) in number
            )
            + ((len(number),) if module in waiting else ())
            for module in model.modules()
        }
        self._parameters = len(number)
        self._called: dict[nn.Module, float] = {}

    def called(self, module: nn.Module) -> None:
        """`module`'s forward begins; only its first call in the pass counts."""
        self._called.setdefault(module, time.perf_counter())

    def owned(self, module: nn.Module) -> tuple[int, ...]:
        """The parameters that `module` itself holds, and what it waits for besides."""
        return self._owned[module]

    def order(self) -> ForwardOrder:
        """What was seen so far, as layers and waits; parameters nobody used come last."""
        waits = self._waits()
        first_use: dict[int, int] = {}
        for place, module in enumerate(self._called):
            for parameter in waits.get(module, ()):
                if parameter < self._parameters:
                    first_use.setdefault(parameter, place)
        places = sorted(set(first_use.values()))
        rank = {place: layer for layer, place in enumerate(places)}
        layer_of = tuple(
            rank[first_use[parameter]] if parameter in first_use else len(places)
            for parameter in range(self._parameters)
        )
        times = list(self._called.values())
        starts = [times[place] - times[0] for place in places]
        if any(layer == len(places) for layer in layer_of):
            starts.append(times[-1] - times[0] if times else 0.0)
        return ForwardOrder(layer_of, tuple(starts), waits)

    def _waits(self) -> dict[nn.Module, tuple[int, ...]]:
        waits: dict[nn.Module, dict[int, None]] = {}
        # A user may call parts of the model and never the whole.
        first = next(iter(self._called), self._model)
        top = self._model if self._model in self._called else first
        stack: list[tuple[nn.Module, nn.Module]] = [(self._model, top)]
        seen: set[nn.Module] = set()
        while stack:
            module, enclosing = stack.pop()
            if module in seen:
                continue
            seen.add(module)
            waiter = module if module in self._called else enclosing
            # Its own forward may run in a later pass all the same, so it waits in any case.
            for who in (waiter, module):
                waits.setdefault(who, {}).update(dict.fromkeys(self._owned[module]))
            stack += [(child, waiter) for child in module.children()]
        return {module: tuple(numbers) for module, numbers in waits.items() if numbers}
