"""Buffers of every kind, against DistributedDataParallel's."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from support.loops import backward
from support.scenarios import distribute
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Optimizer

from p3.engine import P3Error
from p3.engines import EngineName
from p3.module_hooks import Update

STEPS = 4


class Counted(nn.Module):
    """Owns buffers and no parameter: a counter, a mask, a transposed one, and one put anew."""

    calls: Tensor
    mask: Tensor
    largest: Tensor
    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mask", torch.zeros(6, dtype=torch.bool))
        self.register_buffer("largest", torch.zeros(4, 3, dtype=torch.float16).t())
        self.register_buffer("mean", torch.zeros(6), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            now = x.detach()
            self.calls += dist.get_rank() + 1
            self.mask |= now[0] > now.mean()
            self.largest += now.max()
            self.mean = 0.5 * self.mean + now.mean(0)
        return x * (1 + self.mask) + 0.1 * (self.mean + self.largest.sum() + self.calls)


class Normed(nn.Module):
    """Batch norms, and one that learns nothing; forward order is not registration order."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 2)
        self.inner = nn.BatchNorm1d(6, affine=False)
        self.counted = Counted()
        self.stem = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6, momentum=None))
        self.shared = self.inner

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.counted(self.shared(self.stem(x).tanh())).tanh())
        return out


def normed() -> Normed:
    torch.manual_seed(3)
    return Normed()


def batch(step: int, rank: int) -> Tensor:
    return torch.randn(7, 5, generator=torch.Generator().manual_seed(10 * step + rank))


def optimizer_of(model: nn.Module) -> Optimizer:
    return SGD(model.parameters(), lr=0.05, momentum=0.9)


def fit(model: nn.Module, optimizer: Optimizer, counts: range) -> list[float]:
    """What evaluation says between the steps, at once, of the same input on every rank."""
    seen = []
    for step in counts:
        model.eval()
        with torch.no_grad():
            seen.append(float(model(batch(99, 0)).sum()))
        model.train()
        optimizer.zero_grad()
        backward(model(batch(step, dist.get_rank())).square().mean())
        optimizer.step()
    return seen


def buffers_of(model: nn.Module) -> str:
    total = hashlib.sha256()
    for name, buffer in sorted(model.named_buffers()):
        flat = buffer.contiguous().reshape(-1).view(torch.uint8)
        total.update(name.encode() + flat.numpy().tobytes())
    return total.hexdigest()


def buffers(engine: EngineName, update: Update, broadcast: bool) -> dict[str, Any]:
    theirs = normed()
    if dist.get_rank():
        with torch.no_grad():
            for tensor in (*theirs.parameters(), *theirs.buffers()):
                tensor.copy_(torch.ones_like(tensor))
    model: nn.Module = copy.deepcopy(theirs)
    ddp = DistributedDataParallel(theirs, forward_sync_buffers=broadcast)
    fit(ddp, optimizer_of(theirs), range(STEPS))
    model, optimizer = distribute(
        model, optimizer_of(model), engine, update=update, broadcast_buffers=broadcast
    )
    seen = fit(model, optimizer, range(STEPS))
    state = model.state_dict()
    result = {
        "same": all(map(torch.equal, model.parameters(), theirs.parameters())),
        "seen": seen,
        "buffers": buffers_of(model),
        "ddp": buffers_of(theirs),
        "saved": sum(float(tensor.sum()) for tensor in state.values()),
    }
    optimizer.close()
    return result


def buffer_that_grows() -> dict[str, Any]:
    """Refused at step(), on the rank whose buffers count; the other hears that it is gone."""
    model = normed()
    _, optimizer = distribute(model, optimizer_of(model))
    model.counted.mean = torch.zeros(1, 6)
    try:
        fit(model, optimizer, range(2))
        optimizer.synchronize()
    except P3Error as error:
        return {"error": str(error)}
    finally:
        optimizer.close()
    return {}


SCENARIOS: dict[str, Callable[..., dict[str, Any]]] = {
    function.__name__: function for function in (buffers, buffer_that_grows)
}
