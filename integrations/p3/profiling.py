"""Times a model layer by layer, on a CPU or a CUDA device, and makes a `Profile` of it.

A layer is what P3 waits for: a module with parameters of its own, in the order of first use. Its
forward time is from its begin to the next layer's, so that what has no parameters counts for the
layer before; its backward time is from the next layer's last gradient to its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from p3.engine import P3Error
from p3.forward_order import ForwardOrder, ForwardWatch
from p3.profile import LayerProfile, Profile

WARM_UP = 3
ITERATIONS = 10

Register = Callable[[Callable[[Tensor], None]], RemovableHandle]
Step = Callable[[], Tensor]
"""One forward pass; the loss, a scalar."""


class Mark(Protocol):
    """A moment on a device."""

    def since(self, earlier: Mark) -> float:
        """Seconds from `earlier`, a mark of the same kind."""
        ...


@dataclass(frozen=True, slots=True)
class _HostMark:
    seconds: float

    def since(self, earlier: Mark) -> float:
        assert isinstance(earlier, _HostMark)
        return self.seconds - earlier.seconds


@dataclass(frozen=True, slots=True)
class _CudaMark:
    event: torch.cuda.Event

    def since(self, earlier: Mark) -> float:
        assert isinstance(earlier, _CudaMark)
        milliseconds: float = earlier.event.elapsed_time(self.event)
        return milliseconds / 1000


def _host_mark() -> Mark:
    return _HostMark(time.perf_counter())


def _cuda_mark() -> Mark:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return _CudaMark(event)


def profile_model(
    model: nn.Module, step: Step, *, name: str, samples: int, iterations: int = ITERATIONS
) -> Profile:
    """Medians of `iterations` passes of `step`, after WARM_UP others.

    `step` computes a loss of `model`, on whose device it is timed; gradients are dropped after
    each pass, and nothing is updated. `samples` is how many one pass takes. Raises P3Error for a
    model without trained parameters, one of whose layers gets no gradient, or one on several
    devices.
    """
    named = [(key, p) for key, p in model.named_parameters() if p.requires_grad]
    if not named:
        raise P3Error(f"{name} has no parameters that need gradients: there is nothing to send")
    devices = {parameter.device for _, parameter in named}
    if len(devices) > 1:
        listed = ", ".join(sorted(map(str, devices)))
        raise P3Error(f"{name} is on {listed}: P3 and its profile want a model on one device")
    device = devices.pop()
    order = _order(model, [parameter for _, parameter in named], step)
    timed = _Timed(model, named, order, _cuda_mark if device.type == "cuda" else _host_mark)
    try:
        for _ in range(WARM_UP):
            timed.once(step)
        passes = [timed.once(step) for _ in range(iterations)]
    finally:
        timed.close()
    return Profile(
        name,
        f"{_device_name(device)}, torch {torch.__version__}, median of {iterations} iterations",
        samples,
        _itemsize(parameter for _, parameter in named),
        tuple(_layers(named, order, passes)),
    )


def _order(model: nn.Module, parameters: Sequence[nn.Parameter], step: Step) -> ForwardOrder:
    watch = ForwardWatch(model, parameters)
    handles = [
        module.register_forward_pre_hook(lambda module, _: watch.called(module))
        for module in model.modules()
    ]
    step()
    for handle in handles:
        handle.remove()
    return watch.order()


@dataclass(frozen=True, slots=True)
class _Pass:
    """Seconds by layer of one iteration."""

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]


class _Timed:
    """Hooks that mark when layers begin, and when their gradients are there."""

    def __init__(
        self,
        model: nn.Module,
        named: Sequence[tuple[str, nn.Parameter]],
        order: ForwardOrder,
        mark: Callable[[], Mark],
    ) -> None:
        self._named = named
        self._order = order
        self._mark = mark
        self._layers = 1 + max(order.layer_of)
        self._begun: dict[int, Mark] = {}
        self._ready: dict[int, Mark] = {}
        self._handles = [
            module.register_forward_pre_hook(self._enter, prepend=True)
            for module in order.waits
            if any(module is part for part in model.modules())
        ]
        for (_, parameter), layer in zip(named, order.layer_of, strict=True):

            def hook(_: Tensor, layer: int = layer) -> None:
                self._ready[layer] = self._mark()

            register: Register = parameter.register_post_accumulate_grad_hook
            self._handles.append(register(hook))

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()

    def once(self, step: Step) -> _Pass:
        """One forward and backward pass."""
        self._begun.clear()
        self._ready.clear()
        for _, parameter in self._named:
            parameter.grad = None
        began = self._mark()
        loss = step()
        computed = self._mark()
        torch.autograd.backward(loss)
        ended = self._mark()
        if isinstance(ended, _CudaMark):
            ended.event.synchronize()
        return _Pass(self._forward(began, computed), self._backward(computed, ended))

    def _enter(self, module: nn.Module, _: object) -> None:
        mark = self._mark()
        for number in self._order.waits.get(module, ()):
            self._begun.setdefault(self._order.layer_of[number], mark)

    def _forward(self, began: Mark, computed: Mark) -> tuple[float, ...]:
        """What no layer has begun before counts for the first; one never begun takes no time."""
        whole = computed.since(began)
        starts = [0.0]
        for layer in range(1, self._layers):
            mark = self._begun.get(layer)
            starts.append(starts[-1] if mark is None else max(starts[-1], mark.since(began)))
        return tuple(after - before for before, after in pairwise([*starts, whole]))

    def _backward(self, computed: Mark, ended: Mark) -> tuple[float, ...]:
        """From the last layer on; what follows the last gradient counts for the first layer."""
        seconds = [0.0] * self._layers
        reached = 0.0
        for layer in reversed(range(self._layers)):
            mark = self._ready.get(layer)
            if mark is None:
                name = self._named[self._order.layer_of.index(layer)][0]
                raise P3Error(
                    f"{name} got no gradient in the pass that was timed: let it have one, or "
                    "requires_grad_(False), since nothing of it would travel"
                )
            there = max(reached, mark.since(computed))
            seconds[layer] = there - reached
            reached = there
        seconds[0] += max(0.0, ended.since(computed) - reached)
        return tuple(seconds)


def _layers(
    named: Sequence[tuple[str, nn.Parameter]], order: ForwardOrder, passes: Sequence[_Pass]
) -> Iterable[LayerProfile]:
    itemsize = _itemsize(parameter for _, parameter in named)
    for layer in range(1 + max(order.layer_of)):
        members = [
            (name, parameter)
            for (name, parameter), place in zip(named, order.layer_of, strict=True)
            if place == layer
        ]
        yield LayerProfile(
            members[0][0].rpartition(".")[0] or members[0][0],
            tuple(p.numel() * p.element_size() // itemsize for _, p in members),
            median(one.forward_s[layer] for one in passes),
            median(one.backward_s[layer] for one in passes),
        )


def _itemsize(parameters: Iterable[nn.Parameter]) -> int:
    """Bytes of the smallest elements there are; larger ones count as several."""
    return min(parameter.element_size() for parameter in parameters)


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type}, {torch.get_num_threads()} threads"
