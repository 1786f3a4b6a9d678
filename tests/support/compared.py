"""What a rank does in the tests of the systems that P3 is compared with."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from support.scenarios import batches, distribute, equals_single_process, network, train
from torch.optim import SGD

from p3.compared import COMPARED
from p3.systems import SYSTEMS


def synchronous_systems() -> dict[str, Any]:
    """Each against training alone on the joint batch."""
    return {
        name: equals_single_process("sgd", kind)
        for name, kind in COMPARED.items()
        if SYSTEMS[name].synchronous
    }


def asynchronous_system() -> dict[str, Any]:
    """Ranks that take as many steps as they like, on one batch each, over and over."""
    rank = dist.get_rank()
    model = network()
    optimizer = SGD(model.parameters(), lr=0.3)
    model, distributed = distribute(model, optimizer, COMPARED["asgd"], update="server")
    losses = train(model, distributed, batches(rank, 1) * (40 + 20 * rank))
    distributed.close()
    return {"first": losses[0], "last": losses[-1]}


SCENARIOS = {function.__name__: function for function in (synchronous_systems, asynchronous_system)}
