"""Forward order is what a forward pass does, not how modules are named or registered."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from p3.forward_order import ForwardOrder, ForwardWatch


class Backwards(nn.Module):
    """Registers its last layer first, and has a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(2, 2, bias=False)
        self.first = nn.Linear(2, 2, bias=False)
        self.shift = nn.Parameter(torch.zeros(2))
        self.idle = nn.Linear(2, 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.first(x) + self.shift)
        return out


def watch(model: nn.Module, call: nn.Module, *inputs: Tensor) -> ForwardOrder:
    seen = ForwardWatch(model, list(model.parameters()))
    handles = [
        module.register_forward_pre_hook(lambda module, _: seen.called(module))
        for module in model.modules()
    ]
    call(*inputs)
    for handle in handles:
        handle.remove()
    return seen.order()


def names(model: nn.Module, numbers: tuple[int, ...]) -> set[str]:
    every = [name for name, _ in model.named_parameters()]
    return {every[number] for number in numbers}


def test_layers_are_numbered_by_first_use() -> None:
    model = Backwards()
    order = watch(model, model, torch.zeros(1, 2))
    layer = dict(zip(dict(model.named_parameters()), order.layer_of, strict=True))
    assert layer["shift"] < layer["first.weight"] < layer["last.weight"]


def test_each_module_waits_for_its_own_and_the_caller_for_what_is_never_called() -> None:
    model = Backwards()
    waits = watch(model, model, torch.zeros(1, 2)).waits
    assert names(model, waits[model]) == {"shift", "idle.weight"}
    assert names(model, waits[model.first]) == {"first.weight"}
    # A later pass may call it.
    assert names(model, waits[model.idle]) == {"idle.weight"}


@pytest.mark.native_threads
def test_attention_waits_for_the_projection_that_it_never_calls() -> None:
    model = nn.MultiheadAttention(4, 2)
    inputs = torch.zeros(3, 1, 4)
    waits = watch(model, model, inputs, inputs, inputs).waits
    assert "out_proj.weight" in names(model, waits[model])


def test_a_shared_parameter_has_its_earliest_users_place() -> None:
    first, last = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
    last.weight = first.weight
    model = nn.Sequential(first, nn.Linear(3, 3, bias=False), last)
    order = watch(model, model, torch.zeros(1, 3))
    assert order.layer_of == (0, 1)
    assert order.waits[first] == order.waits[last] == (0,)


def test_a_part_called_without_the_whole_waits_for_everything_else() -> None:
    model = Backwards()
    waits = watch(model, model.first, torch.zeros(1, 2)).waits
    assert names(model, waits[model.first]) == set(dict(model.named_parameters()))
