"""What a rank does in the tests of `update="server"`. Each scenario returns plain JSON values."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from support.scenarios import batches, digest, distance, distribute, joint, train
from torch import nn, optim
from torch.optim import Optimizer
from torch.optim.lr_scheduler import StepLR

from p3.engine import P3Error
from p3.pytorch import Distributed

Make = Callable[..., Optimizer]

OPTIMIZERS: dict[str, tuple[Make, dict[str, Any]]] = {
    "momentum": (optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-2}),
    "nesterov": (optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "adam": (optim.Adam, {"lr": 1e-2}),
    "adamw": (optim.AdamW, {"lr": 1e-2, "amsgrad": True, "foreach": True}),
    "nadam": (optim.NAdam, {"lr": 1e-2}),
    "radam": (optim.RAdam, {"lr": 1e-2}),
    "adamax": (optim.Adamax, {"lr": 1e-2}),
    "adagrad": (optim.Adagrad, {"lr": 1e-2, "initial_accumulator_value": 0.1}),
    "adadelta": (optim.Adadelta, {}),
    "rmsprop": (optim.RMSprop, {"lr": 1e-3, "momentum": 0.9, "centered": True, "eps": 1e-3}),
    "rprop": (optim.Rprop, {"lr": 1e-2}),
    "asgd": (optim.ASGD, {"lr": 1e-2}),
}


class Mixed(nn.Module):
    """A convolution whose memory is not in order, a scalar, an unused part, a buffer."""

    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.conv = nn.Conv2d(1, 6, 3)
        self.conv.weight.data = self.conv.weight.data.to(memory_format=torch.channels_last)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.register_buffer("seen", torch.zeros(3))
        self.unused = nn.Linear(5, 5)
        self.hidden = nn.Linear(216, 300)  # more than one run
        self.head = nn.Linear(300, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += x.mean()
        hidden = torch.tanh(self.conv(x)).flatten(1) * self.scale
        out: torch.Tensor = self.head(torch.tanh(self.hidden(hidden)))
        return out


def optimizer_of(name: str, model: Mixed) -> Optimizer:
    """Two parameter groups with settings of their own."""
    make, settings = OPTIMIZERS[name]
    slow = {"params": [*model.conv.parameters(), model.scale], "lr": 1e-3}
    rest = (model.unused, model.hidden, model.head)
    return make([slow, {"params": [p for part in rest for p in part.parameters()]}], **settings)


def at_servers(name: str, model: Mixed, servers: Sequence[int]) -> tuple[Optimizer, Distributed]:
    """The optimizer that the user made, and what stands for it."""
    given = optimizer_of(name, model)
    _, distributed = distribute(model, given, "auto", servers=servers, update="server")
    return given, distributed


def _fit(model: nn.Module, optimizer: Optimizer, data: list[Any]) -> None:
    schedule = StepLR(optimizer, step_size=2, gamma=0.5)
    for one in data:
        train(model, optimizer, [one])
        schedule.step()


def _equal(one: Any, other: Any) -> float:
    """The largest difference of two optimizers' state_dicts; infinite where they differ in form."""
    if isinstance(one, dict):
        if not isinstance(other, dict) or one.keys() != other.keys():
            return float("inf")
        return max((_equal(one[key], other[key]) for key in one), default=0.0)
    if isinstance(one, torch.Tensor):
        if one.shape != other.shape or one.dtype != other.dtype:
            return float("inf")
        return (one - other).abs().max().item() if one.numel() else 0.0
    return 0.0


def servers_update(name: str, servers: Sequence[int], asks: int) -> dict[str, Any]:
    """As training alone, in parameters and in the optimizer's state; nothing of it kept here."""
    alone = Mixed()
    single = optimizer_of(name, alone)
    _fit(alone, single, joint())
    model = Mixed()
    given, distributed = at_servers(name, model, servers)
    _fit(model, distributed, batches(dist.get_rank()))
    # Not collective: one rank asks, the other closes meanwhile, and what it serves is still there.
    distributed.synchronize()
    state = single.state_dict()
    if dist.get_rank() == asks:
        state = distributed.state_dict()
    kept = len(given.state)
    distributed.close()
    return {
        "distance": distance(model, alone),
        "digest": digest(model),
        "state": _equal(state["state"], single.state_dict()["state"]),
        "groups": state["param_groups"] == single.state_dict()["param_groups"],
        "kept": kept,
        "seen": model.seen.tolist(),
    }


def servers_resume(servers: Sequence[int]) -> dict[str, Any]:
    """From a checkpoint, loaded before the first gradient and after some."""
    data = batches(dist.get_rank(), steps=6)
    whole = Mixed()
    _, straight = at_servers("adam", whole, servers)
    train(whole, straight, data[:3])
    saved = copy.deepcopy((whole.state_dict(), straight.state_dict()))
    train(whole, straight, data[3:])
    straight.close()
    digests = []
    for before in (0, 2):
        model = Mixed()
        _, resumed = at_servers("adam", model, servers)
        train(model, resumed, data[4 : 4 + before])
        dist.barrier()
        model.load_state_dict(saved[0])
        resumed.load_state_dict(saved[1])
        dist.barrier()
        train(model, resumed, data[3:])
        resumed.synchronize()
        digests.append(digest(model))
        resumed.close()
    return {"whole": digest(whole), "resumed": digests}


def different_rates(servers: Sequence[int]) -> dict[str, Any]:
    """Rank 1's scheduler goes its own way."""
    model = Mixed()
    _, distributed = at_servers("adam", model, servers)
    data = batches(dist.get_rank())
    train(model, distributed, data[:1])
    distributed.param_groups[1]["lr"] = 0.5 if dist.get_rank() == 1 else 0.25
    try:
        train(model, distributed, data[1:])
        distributed.synchronize()
    except P3Error as error:
        return {"kind": type(error).__name__, "error": str(error)}
    finally:
        distributed.close()
    return {}


def dropped_at_servers(servers: Sequence[int]) -> dict[str, Any]:
    """Gradients that no step() followed change nothing; changes by hand are seen."""
    model = Mixed()
    start = copy.deepcopy(model)
    _, distributed = at_servers("momentum", model, servers)
    inputs, labels = batches(dist.get_rank())[0]
    nn.functional.cross_entropy(model(inputs), labels).backward()  # type: ignore[no-untyped-call]
    distributed.zero_grad()
    distributed.synchronize()
    unchanged = distance(model, start) == 0
    halves = {name: tensor * 0.5 for name, tensor in start.state_dict().items()}
    model.load_state_dict(halves)
    train(model, distributed, batches(dist.get_rank()))
    distributed.synchronize()
    alone = copy.deepcopy(start)
    alone.load_state_dict(halves)
    train(alone, optimizer_of("momentum", alone), joint())
    distributed.close()
    return {"unchanged": unchanged, "distance": distance(model, alone)}


SCENARIOS: dict[str, Callable[..., dict[str, Any]]] = {
    function.__name__: function
    for function in (servers_update, servers_resume, different_rates, dropped_at_servers)
}
