"""The user's optimizer, applied parameter by parameter as gradients come back.

A shadow of the optimizer does the arithmetic: the same class and attributes, whose parameters
are other tensors on the same storage. Their `.grad` is the averaged gradient, so that the user
may clear or refill the model's own `.grad` at any time.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, cast

import torch
from torch.optim import Optimizer

Settings = Mapping[str, Any]
"""A parameter group's hyperparameters (torch types them Any), without its parameters."""


class _Attribute(Protocol):
    def __get__(self, tensor: torch.Tensor, owner: type | None = None) -> torch.Tensor | None: ...
    def __set__(self, tensor: torch.Tensor, value: torch.Tensor | None) -> None: ...


GRAD = cast(_Attribute, torch._C.TensorBase.__dict__["grad"])
"""torch's own attribute, below that of `gradients.TrainedParameter`: never waits."""


def own_gradient(parameter: torch.Tensor) -> torch.Tensor | None:
    """`.grad` as autograd, or who assigned it, left it."""
    return GRAD.__get__(parameter)


class Updater:
    """Applies one optimizer's arithmetic to chosen parameters. Not thread-safe: one thread uses it.

    `gradients[i]` is where parameter i's averaged gradient will be, in its shape, on the CPU.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        parameters: Sequence[torch.nn.Parameter],
        gradients: Sequence[torch.Tensor],
    ) -> None:
        self._optimizer = optimizer
        self._parameters = tuple(parameters)
        self._gradients = tuple(gradients)
        self._shadows = [parameter.detach() for parameter in parameters]
        self._pointers = [parameter.data_ptr() for parameter in parameters]
        number = {id(parameter): index for index, parameter in enumerate(parameters)}
        self._group_of = [0] * len(parameters)
        for index, group in enumerate(optimizer.param_groups):
            for parameter in group["params"]:
                if id(parameter) in number:
                    self._group_of[number[id(parameter)]] = index
        self._stepper = _shadow_of(optimizer)
        self.relink()

    def relink(self) -> None:
        """Take the optimizer's state as it is now (after a checkpoint was loaded)."""
        state: defaultdict[torch.Tensor, Any] = defaultdict(dict)
        for parameter, shadow in zip(self._parameters, self._shadows, strict=True):
            if parameter in self._optimizer.state:
                state[shadow] = self._optimizer.state[parameter]
        self._stepper.state = state

    def own_gradient(self, number: int) -> torch.Tensor | None:
        """What this rank's backward passes left in the parameter's `.grad`."""
        return own_gradient(self._parameters[number])

    def settings(self) -> tuple[Settings, ...]:
        """The hyperparameters in force now, by parameter group."""
        return tuple(
            {key: value for key, value in group.items() if key != "params"}
            for group in self._optimizer.param_groups
        )

    @property
    def has_averages(self) -> bool:
        """Whether averaged gradients come back; not where updates are done elsewhere."""
        return True

    def committed(
        self, iteration: int, settings: Sequence[Settings] | None, absent: Collection[int]
    ) -> None:
        """The user called step(), or for None dropped the gradients; for updates done elsewhere."""

    def complete_state(self) -> AbstractContextManager[None]:
        """Inside, the user's optimizer holds all of its state; here it always does."""
        return nullcontext()

    def parameters_changed(self) -> None:
        """The user loaded parameters; for updates done elsewhere."""

    def finish(self) -> None:
        """No more updates; for those done elsewhere."""

    def apply(
        self,
        numbers: Sequence[int],
        settings: Sequence[Settings],
        kept: Mapping[int, torch.Tensor | None],
    ) -> None:
        """Step parameters `numbers` with `settings` as they were when step() was called.

        Their gradients are the averages, but for those in `kept`.
        """
        by_group: dict[int, list[int]] = {}
        for number in numbers:
            by_group.setdefault(self._group_of[number], []).append(number)
        self._stepper.param_groups = [
            {**settings[group], "params": [self._with_gradient(n, kept.get(n)) for n in members]}
            for group, members in by_group.items()
        ]
        self._stepper.step()
        for number in numbers:
            shadow = self._shadows[number]
            shadow.grad = None
            if shadow in self._stepper.state:
                self._optimizer.state[self._parameters[number]] = self._stepper.state[shadow]

    def _with_gradient(self, number: int, kept: torch.Tensor | None) -> torch.Tensor:
        parameter, shadow = self._parameters[number], self._shadows[number]
        if parameter.data_ptr() != self._pointers[number]:  # the user moved the model's storage
            self._pointers[number] = parameter.data_ptr()
            state = self._stepper.state.pop(shadow, None)
            shadow = self._shadows[number] = parameter.detach()
            if state is not None:
                self._stepper.state[shadow] = state
        if kept is None:
            kept = self._gradients[number]
            if not parameter.is_cpu:
                kept = kept.to(parameter.device)
        shadow.grad = kept
        return shadow


def _shadow_of(optimizer: Optimizer) -> Optimizer:
    # Not copy.copy: Optimizer.__getstate__ keeps three attributes and drops a subclass's own. A
    # scheduler's wrapper around `step` and the user's step hooks stay with the user's optimizer.
    shadow: Optimizer = object.__new__(type(optimizer))
    shadow.__dict__.update(optimizer.__dict__)
    shadow.__dict__.pop("step", None)
    shadow._optimizer_step_pre_hooks = OrderedDict()
    shadow._optimizer_step_post_hooks = OrderedDict()
    return shadow
