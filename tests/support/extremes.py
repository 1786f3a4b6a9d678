"""Models of very many parameters, and of one very large one, beside DistributedDataParallel.

`PYTHONPATH=tests torchrun --nproc-per-node 2 -m support.extremes` prints what they take.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from support.loops import backward
from support.scenarios import digest, distance, distribute
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Optimizer

from p3.engines import EngineName

What = EngineName | Literal["ddp"]
MANY = 10_000
LARGE = 100_000_000
"""Elements: 400 MB."""


class Many(nn.Module):
    """MANY parameters of 1 to 3 elements in a hundred modules."""

    def __init__(self) -> None:
        super().__init__()
        numbers = torch.Generator().manual_seed(1)
        self.parts = nn.ModuleList(
            nn.ParameterList(
                torch.randn(1 + place % 3, generator=numbers) for place in range(MANY // 100)
            )
            for _ in range(100)
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x * each for each in self.parts.parameters()]).square().mean()


class Large(nn.Module):
    """One parameter, whose gradient needs no memory besides."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(LARGE))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight.sum() * x


def fit(model: nn.Module, optimizer: Optimizer, steps: int, ranks: range) -> list[float]:
    """Seconds an iteration."""
    took = []
    for step in range(steps):
        began = time.perf_counter()
        optimizer.zero_grad()
        for rank in ranks:
            backward(model(torch.tensor(1.0 + step + rank)) / len(ranks))
        optimizer.step()
        took.append(time.perf_counter() - began)
    return took


def mine() -> range:
    return range(dist.get_rank(), dist.get_rank() + 1)


def sgd(model: nn.Module) -> Optimizer:
    return SGD(model.parameters(), lr=1.0)


def many(whats: Sequence[What], steps: int = 2) -> dict[str, Any]:
    """How far they end from one process, digests, and seconds of every iteration."""
    alone = Many()
    result: dict[str, Any] = {what: {} for what in whats}
    for what in whats:
        model: nn.Module = copy.deepcopy(alone)
        if what == "ddp":
            result[what]["seconds"] = fit(DistributedDataParallel(model), sgd(model), steps, mine())
        else:
            model, optimizer = distribute(model, sgd(model), what, slice_numel=50_000)
            result[what]["seconds"] = fit(model, optimizer, steps, mine())
            optimizer.close()
        result[what] |= {"model": model, "digest": digest(model)}
    fit(alone, sgd(alone), steps, range(dist.get_world_size()))
    for of in result.values():
        of["distance"] = distance(of.pop("model"), alone)
    return result


@contextmanager
def peak() -> Iterator[list[int]]:
    """Bytes that this process held at most inside, beyond what it held before."""
    found: list[int] = []
    Path("/proc/self/clear_refs").write_text("5")
    before = _held("VmRSS")
    yield found
    found.append(_held("VmHWM") - before)


def _held(what: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(what))


def large(what: What) -> dict[str, Any]:
    """Values, and the most memory that was held at once, in the tensor's size."""
    with peak() as found:
        model: nn.Module = Large()
        optimizer = sgd(model)
        if what == "ddp":
            fit(DistributedDataParallel(model), optimizer, 2, mine())
        else:
            model, distributed = distribute(model, optimizer, what, slice_numel=400_000)
            fit(model, distributed, 2, mine())
            distributed.close()
    weight = next(model.parameters()).detach()
    return {
        "least": float(weight.min()),
        "most": float(weight.max()),
        "held": found[0] / (4 * LARGE),
    }


SCENARIOS: dict[str, Callable[..., dict[str, Any]]] = {
    function.__name__: function for function in (many, large)
}


def main() -> None:
    """Rank 0's numbers."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    whats: list[What] = ["ddp", "groups", "ps"]
    for what, of in many(whats, steps=15).items():
        if dist.get_rank() == 0:
            print(f"{MANY} parameters, {what}: {statistics.median(of['seconds'][3:]):.3f} s")
    for what in whats:
        held = large(what)["held"]
        if dist.get_rank() == 0:
            print(f"{4 * LARGE / 1e6:.0f} MB, {what}: {held:.2f} times that at once")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
