"""What cannot be trained with slices, said before training starts."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from torch.optim import LBFGS, Optimizer, SparseAdam

from p3.engine import P3Error

DTYPES = frozenset(
    (
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.complex64,
        torch.complex128,
    )
)
"""What both Gloo and torch add on the CPU."""


def check_optimizer(optimizer: Optimizer) -> None:
    """P3Error for an optimizer that needs more than one dense gradient at a time."""
    if isinstance(optimizer, LBFGS):
        raise P3Error(
            "LBFGS evaluates a closure on all parameters together and cannot be "
            "applied parameter by parameter: use another optimizer"
        )
    if isinstance(optimizer, SparseAdam):
        raise P3Error(
            "SparseAdam takes sparse gradients only, and sums of slices are dense: use Adam, and "
            "Embedding(sparse=False)"
        )


def check_modules(model: nn.Module) -> None:
    """P3Error for a module that cannot train here: one without shapes, SyncBatchNorm on the CPU."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if nn.parameter.is_lazy(tensor):
            raise P3Error(
                f"{name} has no shape yet: run one forward pass on every rank before distribute()"
            )
    for name, module in model.named_modules():
        if isinstance(module, nn.SyncBatchNorm) and module.training:
            tensors = (*module.parameters(recurse=False), *module.buffers(recurse=False))
            if any(tensor.device.type == "cpu" for tensor in tensors):
                raise P3Error(
                    f"{name or 'the model'} is a SyncBatchNorm on the CPU, where torch has none: "
                    "move the model to its GPU before distribute(), or use BatchNorm"
                )


def check_parameters(named: Iterable[tuple[str, torch.Tensor]]) -> None:
    """P3Error for a trained tensor that cannot be summed or stepped in place."""
    for name, tensor in named:
        if tensor.layout is not torch.strided or tensor.is_meta:
            kind = "on the meta device" if tensor.is_meta else f"{tensor.layout}"
            raise P3Error(f"parameter {name} is {kind}: P3 trains dense tensors with memory")
        if tensor.dtype not in DTYPES:
            raise P3Error(
                f"parameter {name} is {tensor.dtype}, which cannot be summed over ranks: "
                "keep it as bfloat16 or wider"
            )
        if any(
            step == 0 < size - 1 for size, step in zip(tensor.shape, tensor.stride(), strict=True)
        ):
            raise P3Error(
                f"parameter {name} is expanded, so that several elements share one place in "
                "memory and no optimizer can step it: make it from .contiguous()"
            )
