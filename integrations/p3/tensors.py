"""Payloads as torch sees them: tensors on an engine's bytes."""

from __future__ import annotations

import torch

from p3.arithmetic import Add, Bytes, add_in_numpy

SERIAL_NUMEL = 32_000
"""Torch shares an addition of 32,768 elements or more among threads, which costs more than it
brings for a slice; parts below that stay in the calling thread."""

_NATIVE = frozenset({torch.float32, torch.float64, torch.complex64, torch.complex128, torch.uint8})
"""What numpy adds in a third of torch's time for a slice. Half precision it adds one by one."""


def dtype_name(dtype: torch.dtype) -> str:
    """The plan's name of `dtype`: numpy's, where numpy has it."""
    return str(dtype).removeprefix("torch.")


def dtype_named(name: str) -> torch.dtype:
    """The dtype that the plan calls `name`."""
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def bytes_of(tensor: torch.Tensor) -> Bytes:
    """The same memory as bytes. `tensor` is 1-D, contiguous and on the CPU."""
    found: Bytes = tensor.view(torch.uint8).numpy()
    return found


def tensor_of(payload: Bytes, name: str) -> torch.Tensor:
    """The same memory as a tensor of the dtype that the plan calls `name`."""
    return torch.from_numpy(payload).view(dtype_named(name))


def summands_of(payload: Bytes, name: str) -> torch.Tensor:
    """The same, but complex numbers as pairs of real ones: not every collective has the former."""
    return torch.from_numpy(payload).view(dtype_named(name).to_real())


def adder(dtype: torch.dtype) -> Add:
    """How slices of `dtype` are added, in the calling thread."""
    return add_in_numpy(dtype_name(dtype)) if dtype in _NATIVE else _add_in_torch(dtype)


def _add_in_torch(dtype: torch.dtype) -> Add:
    def add(total: Bytes, addend: Bytes) -> None:
        parts = torch.split(torch.from_numpy(total).view(dtype), SERIAL_NUMEL)
        addends = torch.split(torch.from_numpy(addend).view(dtype), SERIAL_NUMEL)
        for part, other in zip(parts, addends, strict=True):
            part.add_(other)

    return add
