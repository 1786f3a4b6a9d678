"""The optimizer on a server: it holds the state of its slices, and turns sums into parameters.

One of torch's own classes does the arithmetic, on tensors that are runs of parameters: for an
element-wise optimizer (see `elementwise`) that is the same as on the whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import torch

from p3.arithmetic import Bytes
from p3.commits import Commit, Groups, Value
from p3.elementwise import ELEMENT_WISE
from p3.run_states import RunState, StateError
from p3.slicing import Slice, SlicePlan
from p3.tensors import SERIAL_NUMEL, dtype_named, tensor_of

_SINGLE: Mapping[str, Value] = {"foreach": False, "fused": False, "capturable": False}
"""A run is one tensor on the CPU, where these gain nothing."""


class Recipe(msgspec.Struct, frozen=True):
    """What a server needs to know of the user's optimizer; the settings come with each step().

    `group_of` is the parameter group of every parameter of the plan; what has a number beyond
    them (buffers) is no affair of the optimizer's.
    """

    optimizer: str
    group_of: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """A run: `numel` elements from `start` on of a parameter, at `offset` in a slice's payload."""

    parameter: int
    start: int
    numel: int
    offset: int

    def of(self, flat: torch.Tensor) -> torch.Tensor:
        """The run in its whole parameter, flattened in the order in which it travels."""
        return flat[self.start : self.start + self.numel]

    def inside(self, payload: torch.Tensor) -> torch.Tensor:
        """The run in its slice's payload."""
        return payload[self.offset : self.offset + self.numel]


def places(piece: Slice) -> Iterator[Place]:
    """The runs of a slice, each so small that torch does not share its arithmetic out."""
    offset = 0
    for segment in piece.segments:
        for first in range(0, max(segment.numel, 1), SERIAL_NUMEL):
            numel = min(SERIAL_NUMEL, segment.numel - first)
            yield Place(segment.parameter, segment.start + first, numel, offset + first)
        offset += segment.numel


def most_state_bytes(piece: Slice) -> int:
    """What the parameters and the optimizer's state of a slice may take as a message: 16 numbers
    an element, which is over what any element-wise optimizer keeps, and their names."""
    return 16 * piece.payload_bytes + 2048 * (1 + sum(1 for _ in places(piece)))


class SliceOptimizer:
    """Applies the optimizer to the slices of server `rank`. Not thread-safe.

    On a worker its runs are those of the model's own parameters (see `attach`); a server of its
    own has its own memory (see `load`).
    """

    def __init__(self, plan: SlicePlan, rank: int, recipe: Recipe) -> None:
        kinds = {kind.__name__: kind for kind in ELEMENT_WISE}
        self._optimizer = kinds[recipe.optimizer]([torch.zeros(1)])  # type: ignore[call-arg]
        self._optimizer.state.clear()
        self._group_of = recipe.group_of
        self._attached: set[int] = set()
        self.slices = [piece for piece in plan.slices if piece.server == rank]
        self._dtypes = {piece.index: piece.dtype for piece in self.slices}
        self._runs = {
            piece.index: {
                place: torch.empty(0, dtype=dtype_named(piece.dtype))
                for place in places(piece)
                if place.parameter < len(recipe.group_of)
            }
            for piece in self.slices
        }

    def attach(self, flats: Mapping[int, torch.Tensor]) -> None:
        """Work on these parameters from now on, 1-D each, in the order in which they travel."""
        self._attached |= flats.keys()
        for runs in self._runs.values():
            for place, run in runs.items():
                if place.parameter in flats:
                    run.data = place.of(flats[place.parameter])

    def apply(self, index: int, payload: Bytes, commit: Commit) -> None:
        """Step the parameters of slice `index` with their mean gradients in `payload`.

        Leaves the parameters in their place there.
        """
        runs = self._runs[index]
        total = tensor_of(payload, self._dtypes[index])
        if commit.groups is not None:
            absent = frozenset(commit.absent)
            present = {place: run for place, run in runs.items() if place.parameter not in absent}
            self._step(present, total, commit.groups)
        for place, run in runs.items():
            place.inside(total).copy_(run)

    def dump(self, index: int) -> list[RunState]:
        """The optimizer's state of slice `index`, without the parameters."""
        return [
            RunState(place.parameter, place.start, None, _tensors(self._optimizer.state[run]))
            for place, run in self._runs[index].items()
            if self._optimizer.state.get(run)
        ]

    def load(self, index: int, states: Iterable[RunState]) -> None:
        """Take parameters and state of slice `index`; not the parameters that are attached.

        StateError for what is not of this slice.
        """
        runs = {(place.parameter, place.start): run for place, run in self._runs[index].items()}
        sizes = {(place.parameter, place.start): place.numel for place in self._runs[index]}
        for state in states:
            where = (state.parameter, state.start)
            if where not in runs:
                raise StateError(f"slice {index} has no run of parameter {where[0]} at {where[1]}")
            _check(state, sizes[where], runs[where].dtype)
            if state.values is not None and where[0] not in self._attached:
                runs[where].data = state.values
            if state.state is not None:
                self._optimizer.state[runs[where]] = {
                    name: tensor.clone() for name, tensor in state.state.items()
                }

    def _step(
        self, runs: Mapping[Place, torch.Tensor], total: torch.Tensor, groups: Groups
    ) -> None:
        by_group: dict[int, list[torch.Tensor]] = {}
        for place, run in runs.items():
            run.grad = place.inside(total)
            by_group.setdefault(self._group_of[place.parameter], []).append(run)
        self._optimizer.param_groups = [
            {
                **self._optimizer.defaults,
                **groups[group],
                **_known(groups[group]),
                "params": members,
            }
            for group, members in by_group.items()
        ]
        self._optimizer.step()
        for run in runs.values():
            run.grad = None


def _tensors(state: Mapping[str, object]) -> dict[str, torch.Tensor]:
    """Without what an optimizer has not yet (torch's None)."""
    return {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}


def _known(group: Mapping[str, Value]) -> dict[str, Value]:
    return {key: value for key, value in _SINGLE.items() if key in group}


def _check(state: RunState, numel: int, dtype: torch.dtype) -> None:
    tensors: Sequence[torch.Tensor] = (*(state.state or {}).values(),)
    if state.values is not None and state.values.dtype is not dtype:
        raise StateError(f"parameter {state.parameter} comes as {state.values.dtype}, not {dtype}")
    per_element = [tensor for tensor in tensors if tensor.dim()]
    if state.values is not None:
        per_element.append(state.values)
    if any(tensor.numel() != numel for tensor in per_element):
        raise StateError(f"parameter {state.parameter}'s run at {state.start} has {numel} elements")
