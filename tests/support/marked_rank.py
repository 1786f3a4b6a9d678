"""One of two ranks that train a model with a layer for every band; prints its payload bytes sent.

RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are in the environment, as under torchrun.
"""

from __future__ import annotations

import sys
import warnings

import torch
import torch.distributed as dist
from torch import nn

import p3
from p3_shaper.bands import default_table

WIDTH = 64
ITERATIONS = 4
LAYERS = len(default_table())
GRADIENT_BYTES = ITERATIONS * LAYERS * (WIDTH + 1) * WIDTH * 4
"""What each of two ranks sends, whether in rings or as worker and server: half of every gradient,
and half of every sum."""


def main(engine: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    layers = [nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
    model: nn.Module = nn.Sequential(*layers)
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no agent runs here
        model, distributed = p3.pytorch.distribute(
            model, optimizer, engine=engine, slice_numel=WIDTH * WIDTH // 2
        )
        for _ in range(ITERATIONS):
            distributed.zero_grad()
            model(torch.randn(4, WIDTH)).square().mean().backward()
            distributed.step()
    distributed.synchronize()
    assert distributed.engine is not None
    print(distributed.engine.statistics().payload_bytes_sent)
    distributed.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
