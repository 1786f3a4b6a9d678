"""Training loops as users write them, run by one process on the joint batch and by P3's ranks.

A loop takes a model, an optimizer and this process's batches, and returns what it saw: plain JSON
values that must be alike in both runs, to float tolerance.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from support.scenarios import (
    OPTIMIZERS,
    Batches,
    batches,
    digest,
    distance,
    distribute,
    joint,
    network,
)
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim import SGD, Adagrad, Adam, Optimizer, RMSprop
from torch.optim.lr_scheduler import OneCycleLR

import p3
from p3.engine import P3Error
from p3.engines import EngineName
from p3.pytorch import Distributed, OverlapWarning
from p3_shaper.bands import default_table

Seen = list[float]
Loop = Callable[[nn.Module, Optimizer, Batches], Seen]


def backward(loss: Tensor) -> None:
    loss.backward()  # type: ignore[no-untyped-call]


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1])


def unsent(optimizer: Optimizer) -> AbstractContextManager[None]:
    """no_sync, where there is something to leave out."""
    if isinstance(optimizer, Distributed):
        return p3.pytorch.no_sync(optimizer)
    return nullcontext()


def norms(model: nn.Module) -> Seen:
    return [p.grad.norm().item() for p in model.parameters() if p.grad is not None]


# -- loops -------------------------------------------------------------------------------------


def plain(model: nn.Module, optimizer: Optimizer, data: Batches) -> Seen:
    for batch in data:
        optimizer.zero_grad()
        backward(loss_of(model, batch))
        optimizer.step()
    return []


def clipped_norm(model: nn.Module, optimizer: Optimizer, data: Batches) -> Seen:
    seen = []
    for batch in data:
        backward(loss_of(model, batch))
        seen.append(float(clip_grad_norm_(model.parameters(), 0.5)))
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    return seen


def clipped_value(model: nn.Module, optimizer: Optimizer, data: Batches) -> Seen:
    for batch in data:
        model.zero_grad()
        backward(loss_of(model, batch))
        clip_grad_value_(model.parameters(), 0.02)
        optimizer.step()
    return []


def edited(model: nn.Module, optimizer: Optimizer, data: Batches) -> Seen:
    """In place, assigned, and taken away; what is kept of one iteration stays as it was."""
    kept = torch.zeros(5)
    bias, weight, other = list(model.parameters())[-1:-4:-1]
    for number, batch in enumerate(data):
        backward(loss_of(model, batch))
        assert bias.grad is not None
        bias.grad *= 0.5
        weight.grad = torch.full_like(weight, 0.01)
        if number % 2:
            other.grad = None
        optimizer.step()
        if number == 0:
            kept = bias.grad
        optimizer.zero_grad()
    return kept.tolist()


def looked_at(model: nn.Module, optimizer: Optimizer, data: Batches) -> Seen:
    """Rank 0 alone looks, before step() and after it."""
    seen = []
    for number, batch in enumerate(data):
        model.zero_grad(set_to_none=number % 2 == 0)
        backward(loss_of(model, batch))
        if number < 2 and dist.get_rank() == 0:
            seen += norms(model)
        optimizer.step()
        if number > 1:
            seen += norms(model)
    model.zero_grad()
    assert all(p.grad is None for p in model.parameters())
    return seen


def zeroed_in_turn(model: nn.Module, optimizer: Optimizer, data: Batches) -> Seen:
    """All four ways, and one batch whose gradients are thrown away."""
    ways: list[Callable[[], None]] = [
        lambda: optimizer.zero_grad(set_to_none=False),
        lambda: model.zero_grad(set_to_none=False),
        optimizer.zero_grad,
        model.zero_grad,
    ]
    for number, batch in enumerate(data * 2):
        if number in {3, 4}:  # skipped, as after a loss that is not finite
            backward(loss_of(model, batch))
        ways[number % 4]()
        backward(loss_of(model, batch))
        optimizer.step()
    return []


def two_losses(model: nn.Module, optimizer: Optimizer, data: Batches) -> Seen:
    for inputs, labels in data:
        optimizer.zero_grad()
        out = model(inputs)
        functional.cross_entropy(out, labels).backward(retain_graph=True)  # type: ignore[no-untyped-call]
        backward(out.square().mean())
        optimizer.step()
    return []


def clipped_between(model: nn.Module, optimizer: Optimizer, data: Batches) -> Seen:
    """The second loss reaches the first layers only."""
    seen = []
    for inputs, labels in data:
        optimizer.zero_grad()
        backward(functional.cross_entropy(model(inputs), labels))
        seen.append(float(clip_grad_norm_(model.parameters(), 0.5)))
        backward(model[:3](inputs).square().mean())  # type: ignore[index]
        optimizer.step()
    return seen


def accumulated_aloud(model: nn.Module, optimizer: Optimizer, data: Batches) -> Seen:
    """Without no_sync."""
    for first, second in pairwise(data):
        optimizer.zero_grad()
        backward(loss_of(model, first))
        backward(loss_of(model, second))
        optimizer.step()
    return []


def accumulated_all(model: nn.Module, optimizer: Optimizer, data: Batches) -> Seen:
    """Every pass under no_sync, or the last one."""
    for number, (first, second) in enumerate(pairwise(data)):
        optimizer.zero_grad()
        with unsent(optimizer) if number % 2 else nullcontext():
            backward(loss_of(model, first))
        with unsent(optimizer):
            backward(loss_of(model, second))
        optimizer.step()
    return []


def accumulated_in_part(model: nn.Module, optimizer: Optimizer, data: Batches) -> Seen:
    """What is sent last does not reach all that was accumulated before."""
    for first, (inputs, _) in pairwise(data):
        optimizer.zero_grad()
        with unsent(optimizer):
            backward(loss_of(model, first))
        backward(model[:3](inputs).square().mean())  # type: ignore[index]
        optimizer.step()
    return []


def many_forwards(model: nn.Module, optimizer: Optimizer, data: Batches) -> Seen:
    """Two passes to one backward; evaluation between."""
    seen = []
    for first, second in pairwise(data):
        optimizer.zero_grad()
        loss = loss_of(model, first) + loss_of(model, second)
        model.eval()
        with torch.no_grad():
            seen.append(float(model(torch.ones(1, 1, 8, 8)).sum()))
        model.train()
        backward(loss)
        optimizer.step()
        with torch.inference_mode():
            seen.append(float(model(torch.ones(1, 1, 8, 8)).sum()))
    return seen


def scheduled(model: nn.Module, optimizer: Optimizer, data: Batches) -> Seen:
    """A schedule of rate and momentum, and the user's hooks on step()."""
    calls: list[float] = []
    optimizer.register_step_post_hook(lambda *_: calls.append(optimizer.param_groups[0]["lr"]))
    schedule = OneCycleLR(optimizer, 0.1, total_steps=len(data))
    for batch in data:
        optimizer.zero_grad()
        backward(loss_of(model, batch))
        optimizer.step()
        schedule.step()
    return calls


def from_graph(model: nn.Module, optimizer: Optimizer, data: Batches) -> Seen:
    """Gradients that did not come from backward(), and a graph of gradients."""
    for number, batch in enumerate(data):
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        parameters = list(model.parameters())
        if number % 2:
            for parameter, value in zip(
                parameters, torch.autograd.grad(loss, parameters), strict=True
            ):
                parameter.grad = value
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # torch's, of a reference cycle
                torch.autograd.backward(loss, create_graph=True)
        optimizer.step()
    optimizer.zero_grad()
    return []


LOOPS: dict[str, Loop] = {
    loop.__name__: loop
    for loop in (
        plain,
        clipped_norm,
        clipped_value,
        edited,
        looked_at,
        zeroed_in_turn,
        two_losses,
        clipped_between,
        accumulated_aloud,
        accumulated_all,
        accumulated_in_part,
        many_forwards,
        scheduled,
        from_graph,
    )
}


# -- what runs them ------------------------------------------------------------------------------


def grouped(model: nn.Module) -> Optimizer:
    """Each layer with settings of its own, the last one without any decay."""
    first, second, third = [list(part.parameters()) for part in model if list(part.parameters())]  # type: ignore[attr-defined]
    return SGD(
        [
            {"params": first, "lr": 0.01, "momentum": 0.5},
            {"params": second, "nesterov": True, "momentum": 0.9, "maximize": False},
            {"params": third, "lr": 0.2, "weight_decay": 0.0},
        ],
        lr=0.1,
        weight_decay=0.01,
    )


MAKERS: dict[str, Callable[[nn.Module], Optimizer]] = {
    **OPTIMIZERS,
    "grouped": grouped,
    "rmsprop": lambda model: RMSprop(model.parameters(), lr=1e-3, momentum=0.5, centered=True),
    "adagrad": lambda model: Adagrad(model.parameters(), lr=1e-2, lr_decay=0.1),
    "fused": lambda model: Adam(model.parameters(), lr=1e-3, fused=True),
    "foreach": lambda model: SGD(
        model.parameters(), lr=0.1, momentum=0.9, nesterov=True, foreach=True
    ),
}


@contextmanager
def told() -> Iterator[list[str]]:
    """What the user was warned of, by P3 alone."""
    said: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", OverlapWarning)
        yield said
    said += [str(warning.message) for warning in caught]


def compare(loop: str, make: str, engine: EngineName) -> dict[str, Any]:
    """`loop` alone on the joint batch and by all ranks: how far apart they end."""
    alone = network()
    expected = LOOPS[loop](alone, MAKERS[make](alone), joint())
    model = network()
    model, optimizer = distribute(model, MAKERS[make](model), engine)
    with told() as said:
        seen = LOOPS[loop](model, optimizer, batches(dist.get_rank()))
    optimizer.synchronize()
    result = {
        "distance": distance(model, alone),
        "digest": digest(model),
        "off": max((abs(a - b) for a, b in zip(seen, expected, strict=True)), default=0.0),
        "told": said,
    }
    optimizer.close()
    return result


def read_where_parameters_return() -> dict[str, Any]:
    """update="server" has no averages to show, clip, unscale or replace."""
    model = network()
    model, optimizer = p3.pytorch.distribute(
        model, OPTIMIZERS["adam"](model), engine="ps", update="server", bands=default_table()
    )
    scaler = GradScaler("cpu")
    backward(scaler.scale(loss_of(model, batches(dist.get_rank())[0])))
    parameters = list(model.parameters())
    attempts: dict[str, Callable[[], object]] = {
        "read": lambda: parameters[0].grad,
        "clipped": lambda: clip_grad_norm_(parameters, 1.0),
        "unscaled": lambda: scaler.unscale_(optimizer),
        "scaled": lambda: scaler.step(optimizer),
        "assigned": lambda: setattr(parameters[0], "grad", torch.zeros_like(parameters[0])),
    }
    said = {}
    for name, attempt in attempts.items():
        try:
            attempt()
        except P3Error as error:
            said[name] = str(error)
    optimizer.zero_grad()
    optimizer.close()
    return {"attempts": list(attempts), "said": said}


SCENARIOS: dict[str, Callable[..., dict[str, Any]]] = {
    function.__name__: function for function in (compare, read_where_parameters_return)
}
