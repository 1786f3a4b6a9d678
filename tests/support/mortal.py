"""One rank that trains until it hears of an error; prints a line an iteration, then the error."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
import torch.distributed as dist
from support.scenarios import OPTIMIZERS, batches, distribute, network, train

from p3.engine import P3Error
from p3.engines import EngineName


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train_until_an_error("ps" if sys.argv[1] == "ps" else "groups")


def train_until_an_error(engine: EngineName, servers: Sequence[int] = ()) -> None:
    model = network()
    model, optimizer = distribute(model, OPTIMIZERS["sgd"](model), engine, servers=servers)
    data = batches(dist.get_rank(), steps=1)
    try:
        while True:
            train(model, optimizer, data)
            print("trained", flush=True)
    except P3Error as error:
        print(f"{type(error).__name__}: {error}", flush=True)
    optimizer.close()


if __name__ == "__main__":
    main()
