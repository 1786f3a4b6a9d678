"""What models do between forward and backward, against one process on the joint batch or DDP."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from support.loops import backward, told
from support.scenarios import digest, distance, distribute
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import StepLR
from torch.utils.checkpoint import checkpoint

from p3.engine import P3Error
from p3.engines import EngineName

WIDTH = 12
STEPS = 6


class Blocks(nn.Module):
    """Registered last first. `how` says what forward does with them; `odd` is rank 1's share."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.head = nn.Linear(WIDTH, 3)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.Tanh()) for _ in range(3)
        )
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.scale = nn.Parameter(torch.full((WIDTH,), 1.1))

    def forward(self, x: Tensor, step: int, odd: bool) -> Tensor:
        how = self.how
        x = self.stem(x) * self.scale
        for number, block in enumerate(self.blocks):
            if how == "dropped" and (number + step + odd) % 3 == 0:
                continue
            if how in {"reentrant", "not_reentrant"}:
                x = x + checkpoint(block, x, use_reentrant=how == "reentrant")
            else:
                x = x + block(x)
        if how == "twice":
            x = self.stem(self.blocks[0](x))
        if how == "functional":
            x = x @ self.blocks[1][0].weight + self.stem.bias  # type: ignore[index]
        if how == "all_reentrant":
            out = checkpoint(self.head, x, use_reentrant=True)
        else:
            out = self.head(x)
        return out  # type: ignore[no-any-return]


def inputs(step: int) -> Tensor:
    """By rank."""
    numbers = torch.Generator().manual_seed(step)
    return torch.randn(dist.get_world_size(), 5, WIDTH, generator=numbers)


def blocks(how: str) -> Blocks:
    torch.manual_seed(5)
    return Blocks(how)


def optimizer_of(model: nn.Module) -> Optimizer:
    return SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)


def mine(model: nn.Module, step: int) -> Tensor:
    rank = dist.get_rank()
    out: Tensor = model(inputs(step)[rank], step, rank == 1)
    return out.square().mean()


def everyones(model: nn.Module, step: int) -> Tensor:
    ranks = range(dist.get_world_size())
    losses = [model(inputs(step)[rank], step, rank == 1).square().mean() for rank in ranks]
    return torch.stack(losses).mean()


def fit(model: nn.Module, optimizer: Optimizer, loss: Callable[[nn.Module, int], Tensor]) -> None:
    for step in range(STEPS):
        optimizer.zero_grad()
        backward(loss(model, step))
        optimizer.step()


def forward_of(how: str, compiled: str, engine: EngineName) -> dict[str, Any]:
    alone = blocks(how)
    fit(alone, optimizer_of(alone), everyones)
    model: nn.Module = blocks(how)
    called = model
    if compiled == "before":
        called = model = torch.compile(model, backend="eager")  # type: ignore[assignment]
    elif compiled == "blocks":
        for block in model.blocks:  # type: ignore[union-attr]
            block.compile(backend="eager")
    model, optimizer = distribute(model, optimizer_of(model), engine, slice_numel=50)
    if compiled == "after":
        called = torch.compile(model, backend="eager")  # type: ignore[assignment]
    with told() as said:
        # The compiler looks at every tensor's, where hooks break its graphs.
        warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf")
        fit(called, optimizer, mine)
    optimizer.synchronize()
    result = {"distance": distance(model, alone), "digest": digest(model), "told": said}
    optimizer.close()
    return result


def scaled(
    model: nn.Module, optimizer: Optimizer, *, unscale: bool, dtype: torch.dtype
) -> list[float]:
    """GradScaler's loop; in step 2 the loss of rank 1 alone is infinite."""
    scaler = GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    scales = []
    for step in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=dtype):
            loss = mine(model, step)
        if step == 2 and dist.get_rank() == 1:
            loss = loss * torch.inf
        backward(scaler.scale(loss))
        if unscale:
            scaler.unscale_(optimizer)
            clip_grad_norm_(model.parameters(), 0.3)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return scales


def amp(unscale: str, dtype: str, fused: str) -> dict[str, Any]:
    """Against DistributedDataParallel."""

    def make(model: nn.Module) -> Optimizer:
        if fused:
            return torch.optim.Adam(model.parameters(), lr=1e-2, fused=True)
        return optimizer_of(model)

    options: dict[str, Any] = {"unscale": bool(unscale), "dtype": getattr(torch, dtype)}
    theirs = blocks("plain")
    expected = scaled(DistributedDataParallel(theirs), make(theirs), **options)
    model: nn.Module = blocks("plain")
    model, optimizer = distribute(model, make(model), slice_numel=50)
    with told():
        scales = scaled(model, optimizer, **options)
    optimizer.close()
    return {
        "distance": distance(model, theirs),
        "digest": digest(model),
        "scales": scales,
        "expected": expected,
    }


def frozen() -> dict[str, Any]:
    """One layer frozen from the start stays; thawed later it is refused, not left untrained."""
    alone, model = blocks("plain"), blocks("plain")
    for each in (alone, model):
        each.stem.requires_grad_(False)
    fit(alone, optimizer_of(alone), everyones)
    trained, optimizer = distribute(model, optimizer_of(model))
    fit(trained, optimizer, mine)
    optimizer.synchronize()
    off = distance(model, alone)
    model.stem.requires_grad_(True)
    optimizer.zero_grad()
    backward(mine(model, 0))
    try:
        optimizer.step()
    except P3Error as error:
        return {"distance": off, "error": str(error)}
    finally:
        optimizer.zero_grad()
        optimizer.close()
    return {}


def adversaries(engine: EngineName) -> dict[str, Any]:
    """Two models and optimizers; the second one's loss goes through the first one."""
    torch.manual_seed(9)
    start = nn.ModuleList([nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)])

    def play(models: nn.ModuleList, optimizers: list[Optimizer], share: slice) -> None:
        maker, judge = models
        for step in range(STEPS):
            x = inputs(step)[share].flatten(0, 1)
            for optimizer, sign in zip(optimizers, (1, -1), strict=True):
                for each in optimizers:
                    each.zero_grad()
                backward(sign * judge(maker(x).tanh()).mean())
                optimizer.step()

    def both(models: nn.ModuleList) -> list[Optimizer]:
        return [optimizer_of(model) for model in models]

    alone, models = copy.deepcopy(start), copy.deepcopy(start)
    play(alone, both(alone), slice(None))
    handles = [distribute(m, o, engine)[1] for m, o in zip(models, both(models), strict=True)]
    play(models, list(handles), slice(dist.get_rank(), dist.get_rank() + 1))
    for handle in handles:
        handle.close()
    return {"distance": distance(models, alone), "digest": digest(models)}


def copies() -> dict[str, Any]:
    """Copies and saved models, made while updates are under way, are complete, plain and free."""
    model = blocks("plain")
    _, optimizer = distribute(model, optimizer_of(model), slice_numel=50)
    fit(model, optimizer, mine)
    twin = copy.deepcopy(model)
    fit(model, optimizer, mine)
    stream = io.BytesIO()
    torch.save(model, stream)
    stream.seek(0)
    saved = torch.load(stream, weights_only=False)
    fit(model, optimizer, mine)
    text = repr(model.stem.weight)
    part = model.stem.state_dict()["bias"].clone()
    optimizer.synchronize()
    fit(twin, optimizer_of(twin), mine)  # alone on this rank: nothing is sent
    result = {
        "digests": [digest(saved)],
        "plain": all(type(p) is nn.Parameter for m in (twin, saved) for p in m.parameters()),
        "shows": text == repr(nn.Parameter(model.stem.weight.detach())),
        "part": torch.equal(part, model.stem.bias),
        "parameters": all(isinstance(p, nn.Parameter) for p in model.parameters()),
        "pickled": torch.equal(pickle.loads(pickle.dumps(model.scale)), model.scale),
    }
    optimizer.close()
    result["closed"] = all(type(p) is nn.Parameter for p in model.parameters())
    return result


def states() -> dict[str, Any]:
    """What is saved right after step() is the same on every rank."""
    model: nn.Module = blocks("plain")
    users = torch.optim.AdamW(model.parameters(), lr=1e-2)
    steps = []
    users.register_step_post_hook(lambda *_: steps.append(1))
    schedule = StepLR(users, 1, gamma=0.5)
    model, optimizer = distribute(model, users, slice_numel=50)
    for _ in range(2):
        fit(model, optimizer, mine)
        schedule.step()
    saved = optimizer.state_dict()
    values = [
        [number, name, value.double().sum().item()]
        for number, state in sorted(saved["state"].items())
        for name, value in sorted(state.items())
    ]
    weights = {name: value.double().sum().item() for name, value in model.state_dict().items()}
    optimizer.close()
    return {
        "optimizer": values,
        "model": weights,
        "rate": saved["param_groups"][0]["lr"],
        "steps": len(steps),
    }


SCENARIOS: dict[str, Callable[..., dict[str, Any]]] = {
    function.__name__: function
    for function in (forward_of, amp, frozen, adversaries, copies, states)
}
