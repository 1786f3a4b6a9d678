"""A run of a parameter with its optimizer's state, and how it travels between ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import torch

from p3.tensors import dtype_name


class RunState(msgspec.Struct, array_like=True):
    """Elements `start` … of parameter number `parameter`, in the order in which they travel.

    `values` are the elements, None for "as they are". `state` is the optimizer's: per element
    (1-D), or one number for the whole parameter (0-D); None for "as it is".
    """

    parameter: int
    start: int
    values: torch.Tensor | None
    state: dict[str, torch.Tensor] | None


class StateError(ValueError):
    """What came is no state of an optimizer."""


def encode(states: Sequence[RunState]) -> bytes:
    """MessagePack; tensors as they lie in memory."""
    return msgspec.msgpack.encode(states, enc_hook=_encode_tensor)


def decode(data: bytes | memoryview) -> list[RunState]:
    """The tensors own their memory. StateError when it is none."""
    try:
        return msgspec.msgpack.decode(data, type=list[RunState], dec_hook=_decode_tensor)
    except msgspec.MsgspecError as error:
        raise StateError(str(error)) from error


def _encode_tensor(tensor: object) -> tuple[str, int, bytes]:
    if not isinstance(tensor, torch.Tensor):
        raise NotImplementedError(f"{type(tensor).__name__} does not travel")
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return dtype_name(tensor.dtype), tensor.dim(), flat.view(torch.uint8).numpy().tobytes()


def _decode_tensor(kind: type, data: Any) -> torch.Tensor:  # noqa: ARG001 - msgspec's hook
    name, dimensions, content = msgspec.convert(data, tuple[str, int, bytes])
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"no dtype: {name!r}")
    if len(content) % dtype.itemsize or dimensions not in (0, 1):
        raise ValueError(f"{len(content)} bytes are no {name} with {dimensions} dimensions")
    tensor = torch.empty(len(content) // dtype.itemsize, dtype=dtype)
    tensor.view(torch.uint8).numpy()[:] = memoryview(content)
    return tensor if dimensions else tensor.reshape(())
