"""Ranks with different numbers of batches, against one process."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist
from support.kinds import tensors_of
from support.loops import backward, loss_of, told
from support.normed import buffers_of, fit, normed, optimizer_of
from support.scenarios import batches, digest, distance, distribute, network
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD, AdamW, Optimizer

import p3
from p3.engine import P3Error
from p3.engines import EngineName
from p3.module_hooks import Update

EPOCHS = ((0, 2), (4, 1), (3, 3), (1, 2))
"""Batches of rank 0 and rank 1. The first epoch opens the engine."""

MAKERS: dict[str, Callable[[nn.Module], Optimizer]] = {
    "sgd": lambda model: SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01),
    "adamw": lambda model: AdamW(model.parameters(), lr=1e-2),
}


def set_rate(optimizer: Optimizer, step: int) -> None:
    """A schedule by batch: ranks that are through keep an old rate."""
    for group in optimizer.param_groups:
        group["lr"] = 0.01 / (1 + step)


def alone(make: str, *, clipped: bool) -> tuple[nn.Module, Optimizer]:
    """One process: a rank without a batch counts as one whose gradients are zero."""
    model = network()
    optimizer = MAKERS[make](model)
    data = [batches(rank) for rank in range(dist.get_world_size())]
    for counts in EPOCHS:
        for step in range(max(counts)):
            set_rate(optimizer, step)
            optimizer.zero_grad()
            for rank, count in enumerate(counts):
                if step < count:
                    backward(loss_of(model, data[rank][step]) / len(counts))
            if clipped:
                clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
    return model, optimizer


def joined(make: str, engine: EngineName, update: Update, clipped: bool) -> dict[str, Any]:
    """Several epochs, each joined; parameters and the optimizer's state."""
    expected, single = alone(make, clipped=clipped)
    rank = dist.get_rank()
    model = network()
    model, optimizer = distribute(model, MAKERS[make](model), engine, update=update)
    with told():
        for counts in EPOCHS:
            with p3.pytorch.join(optimizer):
                for step in range(counts[rank]):
                    set_rate(optimizer, step)
                    optimizer.zero_grad()
                    backward(loss_of(model, batches(rank)[step]))
                    if clipped:
                        clip_grad_norm_(model.parameters(), 0.5)
                    optimizer.step()
    mine, theirs = (tensors_of(each.state_dict()) for each in (optimizer, single))
    result = {
        "distance": distance(model, expected),
        "digest": digest(model),
        "off": max(float((a - b).abs().max()) for a, b in zip(mine, theirs, strict=True)),
        "state": hashlib.sha256(
            b"".join(t.contiguous().numpy().tobytes() for t in mine)
        ).hexdigest(),
    }
    optimizer.close()
    return result


def joined_buffers(counts: Sequence[int], engine: EngineName) -> dict[str, Any]:
    """In the end those of a rank that trained longest; rank 0's as long as it trains."""
    rank = dist.get_rank()
    model = normed()
    _, optimizer = distribute(model, optimizer_of(model), engine)
    with optimizer.join():
        fit(model, optimizer, range(counts[rank]))
    optimizer.close()
    return {
        "digest": digest(model),
        "buffers": buffers_of(model),
        "calls": int(model.counted.calls),
    }


def not_joined(engine: EngineName) -> dict[str, Any]:
    """Rank 0 has fewer batches, and nobody joins."""
    model = network()
    model, optimizer = distribute(model, MAKERS["sgd"](model), engine)
    try:
        for data in batches(dist.get_rank())[: 2 + dist.get_rank()]:
            optimizer.zero_grad()
            backward(loss_of(model, data))
            optimizer.step()
        optimizer.synchronize()
    except P3Error as error:
        return {"error": str(error)}
    finally:
        optimizer.close()
    return {}


SCENARIOS: dict[str, Callable[..., dict[str, Any]]] = {
    function.__name__: function for function in (joined, joined_buffers, not_joined)
}
