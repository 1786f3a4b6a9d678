"""One rank's tensors to all ranks, over torch.distributed's default group."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _broadcast_coalesced

BUCKET_BYTES = 25 << 20
"""Smaller tensors travel together in copies of about this size; larger ones without a copy."""


def replicate(tensors: Iterable[torch.Tensor], source: int = 0) -> None:
    """Give `tensors` on every rank the values that they have on rank `source`. Collective.

    Any dtype and strides, as long as every rank has the same shapes and dtypes.
    """
    group = dist.distributed_c10d._get_default_group()
    distinct = [_distinct(tensor.detach()) for tensor in tensors]
    _broadcast_coalesced(group, distinct, BUCKET_BYTES, source)


def _distinct(tensor: torch.Tensor) -> torch.Tensor:
    """One of each of the elements that an expanded tensor shows several times."""
    for dimension, step in enumerate(tensor.stride()):
        if step == 0 and tensor.shape[dimension] > 1:
            tensor = tensor.narrow(dimension, 0, 1)
    return tensor
