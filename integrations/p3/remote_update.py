"""The worker's half of `update="server"`: parameters come back in place of gradients.

The optimizer's state is at the servers, divided by slices. It is put together where the user asks
for it, and given out where the user loads it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch
from torch.optim import Optimizer

from p3.commits import Commit, Value
from p3.engine import Engine, P3Error
from p3.payloads import Payloads
from p3.run_states import RunState
from p3.server_update import Place, Recipe, SliceOptimizer, places
from p3.slicing import Slice, SlicePlan
from p3.updater import Settings, Updater

_PER_PARAMETER = frozenset({"step", "eta", "mu", "mu_product"})
"""State that is one number a parameter; all other state has one an element."""


class UpdatingEngine(Engine, Protocol):
    """An engine whose slices come back as parameters. `optimizer` is this rank's part of it."""

    optimizer: SliceOptimizer

    def commit(self, iteration: int, commit: Commit) -> None:
        """This worker's step() of `iteration`, whose slices are all handed over. Returns at once.

        Until then this rank's optimizer does nothing in that iteration.
        """
        ...

    def collect(self) -> list[RunState]:
        """The optimizer's state of all slices, from their servers, after the last commit. Waits.

        No other rank need call it. P3Error when the engine has failed.
        """
        ...

    def load(self, index: int, states: Sequence[RunState]) -> None:
        """Give slice `index`'s server its state, and parameters if it does not work.

        All workers call it alike; only what is this one's to do is done.
        """
        ...

    def finish(self) -> None:
        """No more commits; waits until all workers say so: the state of some may be here."""
        ...


class RemoteUpdater(Updater):
    """Stands in for an Updater. P3Error for settings that do not travel."""

    def __init__(
        self,
        optimizer: Optimizer,
        parameters: Sequence[torch.nn.Parameter],
        payloads: Payloads,
        plan: SlicePlan,
        rank: int,
    ) -> None:
        self._engine: UpdatingEngine | None = None
        super().__init__(optimizer, parameters, payloads.gradients)
        self._payloads = payloads
        self._plan = plan
        self._mine = [piece for piece in plan.slices if piece.server == rank]
        self._apart = [piece for piece in plan.slices if piece.server >= plan.world_size]
        self._addresses: dict[int, int] = {}
        self._plain(self.settings())

    @property
    def recipe(self) -> Recipe:
        """What servers must know."""
        return Recipe(type(self._optimizer).__name__, tuple(self._group_of))

    def connect(self, engine: UpdatingEngine) -> None:
        """The engine is open: give the servers what they start from."""
        self._engine = engine
        self._attach()
        self.relink()

    def relink(self) -> None:
        """Give the optimizer's state, as it is now, to the servers; none is kept here."""
        if self._engine is None:
            return
        for piece in (*self._mine, *self._apart):
            states = [self._state_of(place) for place in self._places(piece)]
            self._engine.load(piece.index, states)
        self._forget()

    def parameters_changed(self) -> None:
        """The user loaded parameters: servers that do not work have some of their own."""
        if self._engine is None:
            return
        for piece in self._apart:
            states = [self._values_of(place, None) for place in self._places(piece)]
            self._engine.load(piece.index, states)

    def committed(
        self, iteration: int, settings: Sequence[Settings] | None, absent: Collection[int]
    ) -> None:
        """Tell the servers of a step(), or for None that the iteration's gradients are dropped."""
        assert self._engine is not None
        self._attach()
        groups = None if settings is None else self._plain(settings)
        self._engine.commit(iteration, Commit(groups, tuple(sorted(absent))))

    def finish(self) -> None:
        """Wait until no worker wants anything of this rank's server any more."""
        if self._engine is not None:
            self._engine.finish()

    @property
    def has_averages(self) -> bool:
        """Parameters come back."""
        return False

    def apply(
        self,
        numbers: Sequence[int],
        settings: Sequence[Settings],  # noqa: ARG002
        kept: Mapping[int, torch.Tensor | None],  # noqa: ARG002
    ) -> None:
        """Take parameters `numbers` as they came back."""
        for number in numbers:
            self._parameters[number].detach().copy_(self._gradients[number])

    @contextmanager
    def complete_state(self) -> Iterator[None]:
        """Inside, the user's optimizer holds all of its state, as torch keeps it."""
        assert self._engine is not None
        for number, state in self._assembled(self._engine.collect()).items():
            self._optimizer.state[self._parameters[number]] = state
        try:
            yield
        finally:
            self._forget()

    def _forget(self) -> None:
        for parameter in self._parameters:
            self._optimizer.state.pop(parameter, None)

    def _places(self, piece: Slice) -> list[Place]:
        return [place for place in places(piece) if place.parameter < len(self._parameters)]

    def _flat(self, number: int) -> torch.Tensor:
        return self._payloads.flatten(number, self._parameters[number].detach())

    def _attach(self) -> None:
        """Have this rank's server work on the model's own parameters, wherever they are now.

        Those that are no run of memory here (on a device, say) it gets copies of.
        """
        assert self._engine is not None
        moved: dict[int, torch.Tensor] = {}
        for number in {place.parameter for piece in self._mine for place in self._places(piece)}:
            flat, address = self._flat(number).cpu(), self._parameters[number].data_ptr()
            if flat.data_ptr() != address or self._addresses.get(number) != address:
                moved[number] = flat
                self._addresses[number] = address
        if moved:
            self._engine.optimizer.attach(moved)

    def _state_of(self, place: Place) -> RunState:
        parameter = self._parameters[place.parameter]
        whole: Mapping[str, object] = self._optimizer.state.get(parameter, {})
        state: dict[str, torch.Tensor] = {}
        for name, tensor in whole.items():
            if not isinstance(tensor, torch.Tensor):
                continue
            if name in _PER_PARAMETER:
                state[name] = tensor
            else:
                flat = self._payloads.flatten(place.parameter, tensor)
                state[name] = place.of(flat).cpu()
        return self._values_of(place, state)

    def _values_of(self, place: Place, state: dict[str, torch.Tensor] | None) -> RunState:
        values = place.of(self._flat(place.parameter)).cpu()
        return RunState(place.parameter, place.start, values, state)

    def _assembled(self, states: Sequence[RunState]) -> dict[int, dict[str, torch.Tensor]]:
        found: dict[int, dict[str, torch.Tensor]] = {}
        for one in states:
            parameter = self._parameters[one.parameter]
            whole = found.setdefault(one.parameter, {})
            for name, tensor in (one.state or {}).items():
                if name in _PER_PARAMETER:
                    whole[name] = tensor.clone()
                    continue
                flat = whole.setdefault(name, torch.empty(parameter.numel(), dtype=tensor.dtype))
                flat[one.start : one.start + tensor.numel()] = tensor
        for number, whole in found.items():
            parameter = self._parameters[number]
            for name, flat in whole.items():
                if name not in _PER_PARAMETER:
                    shaped = torch.empty_like(parameter, dtype=flat.dtype, requires_grad=False)
                    values = self._payloads.arrange(number, flat, parameter.shape)
                    whole[name] = shaped.copy_(values)
        return found

    def _plain(self, settings: Sequence[Settings]) -> tuple[dict[str, Value], ...]:
        """What the optimizer's arithmetic uses of its settings; not what others keep there."""
        return tuple(
            {
                name: _plain_value(name, value)
                for name, value in group.items()
                if name in self._optimizer.defaults
            }
            for group in settings
        )


def _plain_value(name: str, value: object) -> Value:
    if isinstance(value, torch.Tensor):
        value = value.item()
    if isinstance(value, list | tuple):
        return tuple(float(part) for part in value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise P3Error(
        f'update="server": the setting {name} is a {type(value).__name__}, which does not travel '
        "to servers: use a number"
    )
