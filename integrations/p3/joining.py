"""Ranks with different numbers of batches: who has no more takes part until nobody has any.

Who is through says so in the store that torch.distributed was made with, then hands over empty
iterations. Only ranks that are through ever look there: the others neither wait nor pay. All that
took part in an iteration without training in it had said so before, so that all of them find
the same iteration to have been the first empty one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from p3.exchange import Exchange
from p3.replicate import replicate


def take_part(exchange: Exchange, store: dist.distributed_c10d.Store, key: str) -> list[int]:
    """Take part in `exchange` without gradients until no rank trains; blocks.

    `key` names this occasion in `store`, the same on every rank. Returns after how many of the
    exchange's iterations each rank was through. P3Error when the exchange ends before.
    """
    keys = [f"{key}/{rank}" for rank in range(dist.get_world_size())]
    store.set(keys[dist.get_rank()], str(exchange.iteration))
    while True:
        iteration = exchange.iteration
        exchange.commit(())
        exchange.synchronize()
        if store.check(keys):
            ends = [int(store.get(one)) for one in keys]
            if max(ends) <= iteration:
                return ends


@dataclass(frozen=True, slots=True)
class _Form:
    shape: torch.Size
    dtype: torch.dtype
    on_cpu: bool


def share_state(optimizer: Optimizer, parameters: Sequence[nn.Parameter], source: int) -> None:
    """Give `optimizer` on every rank the state that it has on rank `source`. Collective."""
    forms = [
        {name: _form_of(value) for name, value in optimizer.state.get(parameter, {}).items()}
        for parameter in parameters
    ]
    box = [forms]
    dist.broadcast_object_list(box, src=source)
    tensors: list[Tensor] = []
    for parameter, theirs in zip(parameters, box[0], strict=True):
        mine = optimizer.state.pop(parameter, {})
        if theirs:
            optimizer.state[parameter] = state = {
                name: _fitting(mine.get(name), form, parameter.device)
                for name, form in theirs.items()
            }
            tensors += [value for value in state.values() if isinstance(value, Tensor)]
    replicate(tensors, source)


def _form_of(value: object) -> object:
    return _Form(value.shape, value.dtype, value.is_cpu) if isinstance(value, Tensor) else value


def _fitting(mine: object, form: object, device: torch.device) -> object:
    """What takes `form`, for a parameter on `device`: one's own tensor if it does."""
    if not isinstance(form, _Form):
        return form
    if isinstance(mine, Tensor) and _form_of(mine) == form:
        return mine
    return torch.empty(form.shape, dtype=form.dtype, device="cpu" if form.on_cpu else device)
