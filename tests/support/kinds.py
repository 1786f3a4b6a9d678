"""Parameters and gradients of every kind, against DistributedDataParallel or one process."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from support.loops import backward
from support.scenarios import Make, digest, distance, distribute
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Adagrad, AdamW, Optimizer, SparseAdam

import p3
from p3.engine import P3Error
from p3.engines import EngineName
from p3.module_hooks import Update
from p3.pytorch import SparseGradientWarning

STEPS = 4
REAL = (torch.float16, torch.bfloat16, torch.float64, torch.float32)
COMPLEX = (torch.complex64, torch.complex128)

MAKERS: dict[str, Make] = {
    # eps is what float16 can hold.
    "adamw": lambda model: AdamW(model.parameters(), lr=1e-2, eps=1e-3, amsgrad=True),
    "nesterov": lambda model: SGD(model.parameters(), lr=1e-3, momentum=0.9, nesterov=True),
    "adagrad": lambda model: Adagrad(model.parameters(), lr=0.1),
    "momentum": lambda model: SGD(model.parameters(), lr=0.1, momentum=0.9),
}


class Kinds(nn.Module):
    """Dtypes in turn, and shapes and memory of all sorts; several slices, and shared ones."""

    def __init__(self, dtypes: tuple[torch.dtype, ...]) -> None:
        super().__init__()
        numbers = torch.Generator().manual_seed(2)
        made = []
        for shape in ((40, 5), (), (0,), (3, 0, 2), (7,)):
            made += [torch.randn(shape, generator=numbers, dtype=dtype) for dtype in dtypes]
        made.append(torch.randn(6, 3, 4, 4).to(memory_format=torch.channels_last))
        made.append(torch.randn(9, 12).t())
        made.append(torch.randn(8, 6, 2)[:, ::2])  # with gaps
        self.weights = nn.ParameterList(made)

    def forward(self, x: Tensor) -> Tensor:
        # Every element of every parameter gets a gradient of its own.
        total = x.new_zeros((), dtype=torch.float64)
        for weight in self.weights:
            span = torch.linspace(0.5, 1.5, weight.numel(), dtype=torch.float64).view(weight.shape)
            total = total + (weight * span.to(weight.dtype) - x).abs().square().sum()
        return total


def fit(model: nn.Module, optimizer: Optimizer) -> None:
    for step in range(STEPS):
        optimizer.zero_grad()
        backward(model(torch.tensor(0.3 * step + dist.get_rank())))
        optimizer.step()


def kinds(make: str, engine: EngineName, update: Update) -> dict[str, Any]:
    """Two ranks' sums have one order, so that the same bits come out as from DDP."""
    theirs = Kinds(REAL if update == "server" else REAL + COMPLEX)
    if dist.get_rank():
        with torch.no_grad():
            for parameter in theirs.parameters():
                parameter.add_(1)
    model: nn.Module = copy.deepcopy(theirs)
    strides = [parameter.stride() for parameter in model.parameters()]
    single = MAKERS[make](theirs)
    fit(DistributedDataParallel(theirs), single)
    model, optimizer = distribute(model, MAKERS[make](model), engine, slice_numel=50, update=update)
    fit(model, optimizer)
    state = optimizer.state_dict()
    result = {
        "same": all(map(torch.equal, model.parameters(), theirs.parameters())),
        "state": all(map(torch.equal, tensors_of(state), tensors_of(single.state_dict()))),
        "strides": strides == [parameter.stride() for parameter in model.parameters()],
    }
    optimizer.close()
    return result


def tensors_of(state_dict: dict[str, Any]) -> list[Tensor]:
    """In order, and something for what is not there."""
    return [
        value if isinstance(value, Tensor) else torch.zeros(1)
        for _, state in sorted(state_dict["state"].items())
        for _, value in sorted(state.items())
    ]


# -- sparse gradients ----------------------------------------------------------------------------


def words(sparse: bool) -> nn.Module:
    torch.manual_seed(4)
    return nn.Sequential(nn.EmbeddingBag(50, 8, sparse=sparse), nn.Linear(8, 3))


def read(model: nn.Module, optimizer: Optimizer, *, rank: int | None) -> list[float]:
    """One rank's bags of words or all ranks'; every other step looks at the gradient."""
    seen = []
    for step in range(STEPS):
        numbers = torch.Generator().manual_seed(step)
        bags = torch.randint(0, 50, (dist.get_world_size(), 4, 3), generator=numbers)
        optimizer.zero_grad(set_to_none=step % 3 == 0)
        out = model(bags.flatten(0, 1) if rank is None else bags[rank])
        backward(out.square().mean())
        if step % 2:
            gradient = model[0].weight.grad  # type: ignore[index]
            seen.append(float(gradient.to_dense().norm()))
        optimizer.step()
    return seen


def sparse(make: str, engine: EngineName) -> dict[str, Any]:
    """As one process with sparse gradients; P3 says once that they travel dense."""
    alone, model = words(True), words(True)
    model, optimizer = distribute(model, MAKERS[make](model), engine, slice_numel=50)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")  # torch's sparse kernels warn too
        expected = read(alone, MAKERS[make](alone), rank=None)
        seen = read(model, optimizer, rank=dist.get_rank())
        optimizer.close()
    return {
        "distance": distance(model, alone),
        "off": max(abs(a - b) for a, b in zip(seen, expected, strict=True)),
        "digest": digest(model),
        "told": [str(one.message) for one in caught if one.category is SparseGradientWarning],
    }


# -- what cannot be --------------------------------------------------------------------------------


def untrainable() -> dict[str, str]:
    """What P3 says of models that it cannot train, and DDP of one of them."""
    said: dict[str, str] = {}

    def attempt(name: str, model: nn.Module, make: Callable[..., Optimizer] = SGD) -> None:
        try:
            p3.pytorch.distribute(model, make(model.parameters(), lr=0.1))
        except P3Error as error:
            said[name] = str(error)

    def holding(tensor: Tensor) -> nn.Module:
        model = nn.Module()
        model.register_parameter("weight", nn.Parameter(tensor))
        return model

    attempt("sparse_adam", words(True), SparseAdam)
    attempt("lazy", nn.Sequential(nn.Linear(2, 2), nn.LazyLinear(3)))
    attempt("expanded", holding(torch.zeros(1).expand(3)))
    attempt("eight_bits", holding(torch.zeros(3, dtype=torch.float8_e4m3fn)))
    attempt("meta", holding(torch.zeros(3, device="meta")))
    normed = nn.Sequential(nn.Linear(2, 2), nn.SyncBatchNorm(2))
    attempt("sync_batch_norm", normed)
    try:
        DistributedDataParallel(normed)
    except ValueError as error:
        said["ddp"] = str(error)
    return said


SCENARIOS: dict[str, Callable[..., dict[str, Any]]] = {
    function.__name__: function for function in (kinds, sparse, untrainable)
}
