"""What a rank does in the tests of the PyTorch shim. Each scenario returns plain JSON values.

Every scenario runs on all ranks of one process group at once; models are small and made alike
on every rank unless the scenario says otherwise.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from support.third_engine import PLAIN
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import StepLR

import p3
from p3.engine import P3Error
from p3.engines import EngineKind, EngineName
from p3.gloo import Device, open_gloo
from p3.module_hooks import Update
from p3.pytorch import Distributed
from p3.sums import DirectSum, RingSum
from p3_shaper.bands import default_table

BATCH = 6
STEPS = 5
Batches = list[tuple[Tensor, Tensor]]
Make = Callable[[nn.Module], Optimizer]

OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda model: SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-2),
    "nesterov": lambda model: SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda model: Adam(model.parameters(), lr=1e-2),
    "adamw": lambda model: AdamW(model.parameters(), lr=1e-2, amsgrad=True),
}


class Tied(nn.Module):
    """Embedding and output share one weight; attention reads its out_proj without calling it."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(16, 30, bias=False)
        self.embedding = nn.Embedding(30, 16)
        self.head.weight = self.embedding.weight
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.scale = nn.Parameter(torch.ones(16))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) * self.scale
        mixed, _ = self.attention(x, x, x, need_weights=False)
        out: Tensor = self.head(mixed).mean(dim=1)
        return out


class Branches(nn.Module):
    """`left` is used on rank 0 alone, `never` on none."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(8, 8)
        self.left = nn.Linear(8, 8)
        self.never = nn.Linear(8, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor, left: bool) -> Tensor:
        hidden = self.trunk(x)
        out: Tensor = self.head(self.left(hidden) if left else hidden)
        return out


def network() -> nn.Module:
    """Registration order is not forward order; some tensors fill several slices, some share one."""
    torch.manual_seed(7)
    return nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(216, 40), nn.Tanh(), nn.Linear(40, 5)
    )


def batches(rank: int, steps: int = STEPS) -> list[tuple[Tensor, Tensor]]:
    """Rank's inputs and labels, the same in every call."""
    numbers = torch.Generator().manual_seed(100 + rank)
    return [
        (
            torch.randn(BATCH, 1, 8, 8, generator=numbers),
            torch.randint(0, 5, (BATCH,), generator=numbers),
        )
        for _ in range(steps)
    ]


def joint(steps: int = STEPS) -> list[tuple[Tensor, Tensor]]:
    """All ranks' batches together."""
    parts = [batches(rank, steps) for rank in range(dist.get_world_size())]
    return [
        (torch.cat([x for x, _ in step]), torch.cat([y for _, y in step]))
        for step in zip(*parts, strict=True)
    ]


def distribute(
    model: nn.Module,
    optimizer: Optimizer,
    engine: EngineName | EngineKind = "groups",
    slice_numel: int = 1000,
    *,
    servers: Sequence[int] = (),
    update: Update = "worker",
    broadcast_buffers: bool = True,
) -> tuple[nn.Module, Distributed]:
    return p3.pytorch.distribute(
        model,
        optimizer,
        engine=engine,
        slice_numel=slice_numel,
        bands=default_table(),
        servers=servers,
        update=update,
        broadcast_buffers=broadcast_buffers,
    )


def train(model: nn.Module, optimizer: Optimizer, data: list[tuple[Tensor, Tensor]]) -> list[float]:
    losses = []
    for inputs, labels in data:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(inputs), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    return losses


def distance(one: nn.Module, other: nn.Module) -> float:
    """The largest difference of any parameter."""
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max((a - b).abs().max().item() for a, b in pairs)


def digest(model: nn.Module) -> str:
    total = hashlib.sha256()
    for parameter in model.parameters():
        total.update(parameter.detach().numpy().tobytes())
    return total.hexdigest()


def equals_single_process(
    optimizer: str, engine: EngineName | EngineKind = "auto", servers: Sequence[int] = ()
) -> dict[str, Any]:
    alone = network()
    train(alone, OPTIMIZERS[optimizer](alone), joint())
    model = network()
    if dist.get_rank():  # rank 0's parameters are the ones that count
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1)
    model, distributed = distribute(model, OPTIMIZERS[optimizer](model), engine, servers=servers)
    train(model, distributed, batches(dist.get_rank()))
    distributed.synchronize()
    assert distributed.engine is not None
    result = {
        "distance": distance(model, alone),
        "digest": digest(model),
        "engine": type(distributed.engine).__name__,
        "sent": distributed.engine.statistics().payload_bytes_sent,
    }
    distributed.close()
    return result


def third_engine() -> dict[str, Any]:
    return equals_single_process("sgd", PLAIN)


def repeated(engine: EngineName) -> dict[str, Any]:
    digests = []
    for _ in range(2):
        model = network()
        model, distributed = distribute(model, OPTIMIZERS["sgd"](model), engine)
        train(model, distributed, batches(dist.get_rank()))
        distributed.close()
        digests.append(digest(model))
    return {"digests": digests}


def tied_weights(engine: EngineName) -> dict[str, Any]:
    def fit(model: nn.Module, optimizer: Optimizer, ranks: range) -> None:
        for step in range(STEPS):
            numbers = torch.Generator().manual_seed(step)
            tokens = torch.randint(0, 30, (dist.get_world_size(), 4, 6), generator=numbers)
            optimizer.zero_grad()
            mine = tokens[ranks.start : ranks.stop].flatten(0, 1)
            functional.cross_entropy(model(mine), mine[:, 0]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    torch.manual_seed(3)
    alone = Tied()
    model: nn.Module = copy.deepcopy(alone)
    fit(alone, SGD(alone.parameters(), lr=0.5), range(dist.get_world_size()))
    model, distributed = distribute(model, SGD(model.parameters(), lr=0.5), engine, slice_numel=100)
    rank = dist.get_rank()
    fit(model, distributed, range(rank, rank + 1))
    distributed.close()
    return {"distance": distance(model, alone)}


def unused_parameters(engine: EngineName) -> dict[str, Any]:
    torch.manual_seed(4)
    start = Branches()
    model: nn.Module = copy.deepcopy(start)

    def optimizer_of(module: nn.Module) -> SGD:
        return SGD(module.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)

    model, distributed = distribute(model, optimizer_of(model), engine, slice_numel=50)
    alone = copy.deepcopy(start)
    single = optimizer_of(alone)
    world = dist.get_world_size()
    for step in range(STEPS):
        inputs = torch.randn(world, 4, 8, generator=torch.Generator().manual_seed(step))
        distributed.zero_grad()
        rank = dist.get_rank()
        model(inputs[rank], rank == 0).square().mean().backward()
        distributed.step()
        single.zero_grad()
        losses = [alone(inputs[r], r == 0).square().mean() for r in range(world)]
        torch.stack(losses).mean().backward()  # type: ignore[no-untyped-call]
        single.step()
    distributed.close()
    return {
        "distance": distance(model, alone),
        "never_moved": not torch.equal(model.never.weight, start.never.weight),  # type: ignore[union-attr, arg-type]
    }


def learning_rate_of_step(engine: EngineName) -> dict[str, Any]:
    alone = network()
    single = SGD(alone.parameters(), lr=0.5, momentum=0.9)
    schedule = StepLR(single, step_size=1, gamma=0.1)
    for data in joint():
        train(alone, single, [data])
        schedule.step()
    model = network()
    model, distributed = distribute(model, SGD(model.parameters(), lr=0.5, momentum=0.9), engine)
    later = StepLR(distributed, step_size=1, gamma=0.1)
    for data in batches(dist.get_rank()):
        train(model, distributed, [data])
        later.step()
        distributed.param_groups[0]["weight_decay"] = 7.0  # too late for the step before
        distributed.param_groups[0]["weight_decay"] = 0
    distributed.close()
    return {"distance": distance(model, alone), "lr": distributed.param_groups[0]["lr"]}


def accumulation(engine: EngineName) -> dict[str, Any]:
    alone = network()
    single = OPTIMIZERS["sgd"](alone)
    parts = joint(steps=2 * STEPS)
    for first, second in zip(parts[::2], parts[1::2], strict=True):
        single.zero_grad()
        for inputs, labels in (first, second):
            functional.cross_entropy(alone(inputs), labels).backward()  # type: ignore[no-untyped-call]
        single.step()
    model = network()
    model, distributed = distribute(model, OPTIMIZERS["sgd"](model), engine)
    mine = batches(dist.get_rank(), steps=2 * STEPS)
    for first, second in zip(mine[::2], mine[1::2], strict=True):
        distributed.zero_grad()
        with p3.pytorch.no_sync(distributed):
            functional.cross_entropy(model(first[0]), first[1]).backward()  # type: ignore[no-untyped-call]
        functional.cross_entropy(model(second[0]), second[1]).backward()  # type: ignore[no-untyped-call]
        distributed.step()
    distributed.close()
    return {"distance": distance(model, alone)}


def checkpoint(engine: EngineName) -> dict[str, Any]:
    data = batches(dist.get_rank(), steps=6)
    whole = network()
    whole, straight = distribute(whole, OPTIMIZERS["adam"](whole), engine)
    train(whole, straight, data)
    straight.close()

    first = network()
    first, optimizer = distribute(first, OPTIMIZERS["adam"](first), engine)
    train(first, optimizer, data[:3])
    saved = copy.deepcopy((first.state_dict(), optimizer.state_dict()))
    optimizer.close()

    second = network()
    second, resumed = distribute(second, OPTIMIZERS["adam"](second), engine)
    train(second, resumed, data[4:5])  # something else first: loading must replace all of it
    second.load_state_dict(saved[0])
    resumed.load_state_dict(saved[1])
    train(second, resumed, data[3:])
    resumed.close()
    return {"same": digest(whole) == digest(second), "keys": sorted(saved[0])}


def dropped_gradients() -> dict[str, Any]:
    model = network()
    before = copy.deepcopy(model)
    model, distributed = distribute(model, OPTIMIZERS["sgd"](model))
    inputs, labels = batches(dist.get_rank())[0]
    functional.cross_entropy(model(inputs), labels).backward()  # type: ignore[no-untyped-call]
    distributed.zero_grad()
    distributed.synchronize()
    unchanged = distance(model, before) == 0
    losses = train(model, distributed, batches(dist.get_rank()))
    alone = copy.deepcopy(before)
    train(alone, OPTIMIZERS["sgd"](alone), joint())
    distributed.close()
    return {"unchanged": unchanged, "distance": distance(model, alone), "losses": losses}


def misuse() -> dict[str, Any]:
    said: dict[str, str] = {}

    def attempt(name: str, action: Callable[[], object]) -> None:
        try:
            action()
        except P3Error as error:
            said[name] = str(error)

    model = network()
    attempt("lbfgs", lambda: distribute(model, torch.optim.LBFGS(model.parameters())))
    attempt("foreign", lambda: distribute(model, SGD(network().parameters(), lr=1)))
    model, distributed = distribute(model, OPTIMIZERS["sgd"](model))
    attempt("closure", lambda: distributed.step(lambda: 0.0))
    group = {"params": [nn.Parameter(torch.ones(1))]}
    attempt("group", lambda: distributed.add_param_group(group))
    attempt("again", lambda: distribute(model, OPTIMIZERS["sgd"](model)))
    distributed.close()
    return said


def optimizer_that_fails() -> dict[str, Any]:
    class Failing(SGD):
        def step(self, closure: Any = None) -> Any:  # noqa: ARG002
            raise ArithmeticError("no more numbers")

    model = network()
    model, distributed = distribute(model, Failing(model.parameters(), lr=0.1))
    try:
        train(model, distributed, batches(dist.get_rank()))
    except P3Error as error:
        return {"error": str(error)}
    finally:
        distributed.close()
    return {}


def different_models() -> dict[str, Any]:
    """What distribute() says where rank 1 differs in one thing or another."""
    odd = dist.get_rank() == 1
    plain = nn.Linear(11, 11)
    differing: dict[str, tuple[nn.Module, dict[str, Any]]] = {
        "size": (nn.Linear(11, 12 if odd else 11), {}),
        "dtype": (nn.Linear(11, 11, dtype=torch.float64 if odd else torch.float32), {}),
        "slices": (plain, {"slice_numel": 100 if odd else 50}),
        "timeout": (plain, {"timeout": 2.5 if odd else 3}),
    }
    said = {}
    for name, (model, options) in differing.items():
        try:
            p3.pytorch.distribute(
                model, SGD(model.parameters(), lr=0.1), bands=default_table(), **options
            )
        except P3Error as error:
            said[name] = f"{type(error).__name__}: {error}"
    return said


def sums_both_ways() -> dict[str, Any]:
    """One payload summed around the ring and directly: error against float64, and a digest."""
    rank, size = dist.get_rank(), dist.get_world_size()
    group = open_gloo(Device("127.0.0.1"), "sums", rank, size, 30.0)
    shares = [torch.rand(4_001, generator=torch.Generator().manual_seed(r)) for r in range(size)]
    expected = torch.stack(shares).double().sum(0)
    errors, digests = {}, {}
    for kind in (RingSum, DirectSum):
        payload = shares[rank].clone()
        way = kind(payload, size)
        way.start(group).get_future().wait()
        way.finish()
        errors[kind.__name__] = float((payload - expected).abs().max())
        digests[kind.__name__] = hashlib.sha256(payload.numpy().data).hexdigest()
    return {"errors": errors, "digests": digests}


SCENARIOS: dict[str, Callable[..., dict[str, Any]]] = {
    function.__name__: function
    for function in (
        equals_single_process,
        third_engine,
        repeated,
        tied_weights,
        unused_parameters,
        learning_rate_of_step,
        accumulation,
        checkpoint,
        dropped_gradients,
        misuse,
        optimizer_that_fails,
        different_models,
        sums_both_ways,
    )
}
