"""The edge to MXNet, which has no types: asynchronous operations in its dependency engine.

Everything else that P3 does with MXNet goes through Python calls that users make as well. Written
for MXNet 1.9.1 on Linux (include/mxnet/engine.h, c_api.h).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Protocol

import mxnet as mx
import numpy as np
import numpy.typing as npt
from mxnet.base import _LIB, check_call

PRIORITIZED = 3
"""FnProperty::kCPUPrioritized: threads of their own, so that nothing waits behind backward."""
NAME = b"p3_sum"


class Array(Protocol):
    """What P3 uses of mxnet.nd.NDArray."""

    handle: ctypes.c_void_p
    shape: tuple[int, ...]
    size: int
    dtype: type[np.generic]
    stype: str
    grad: Array | None

    def asnumpy(self) -> npt.NDArray[np.generic]:
        """Wait for it, and copy it."""
        ...

    def copyto(self, other: Array) -> object:
        """Queue a copy to `other`, which must be of the same class."""
        ...

    def as_nd_ndarray(self) -> Array:
        """The same memory, as mxnet.nd has it."""
        ...

    def as_np_ndarray(self) -> Array:
        """The same memory, as mxnet.np has it."""
        ...


class _OnComplete(ctypes.Structure):
    """engine::CallbackOnComplete."""

    _fields_ = (
        ("callback", ctypes.c_void_p),
        ("engine", ctypes.c_void_p),
        ("param", ctypes.c_void_p),
    )


_Complete = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
_AsyncFunc = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(_OnComplete), ctypes.c_void_p)


class Failure:
    """A dmlc::Error: a std::runtime_error, which is a table of functions and one pointer.

    The engine copies it, hands it to whatever depends on the operation, none of which is then
    carried out, and raises it as MXNetError where the program next waits for one of these.
    """

    def __init__(self, text: str) -> None:
        self._memory = ctypes.create_string_buffer(2 * ctypes.sizeof(ctypes.c_void_p))
        # The one that libmxnet.so itself is linked to; the ABI of libstdc++ 3.4.
        construct = ctypes.CDLL("libstdc++.so.6")["_ZNSt13runtime_errorC1EPKc"]
        construct.argtypes = (ctypes.c_void_p, ctypes.c_char_p)
        construct.restype = None
        construct(self._memory, text.encode())

    @property
    def address(self) -> int:
        """Where it is; valid as long as this object lives."""
        return ctypes.addressof(self._memory)


class Completion:
    """One operation that MXNet considers under way until this is called, from any thread."""

    def __init__(self, raw: _OnComplete) -> None:
        self._callback = _Complete(raw.callback)
        self._engine = raw.engine
        self._param = raw.param

    def __call__(self, failure: Failure | None = None) -> None:
        """It is done, or it failed."""
        self._callback(self._engine, self._param, None if failure is None else failure.address)


class Operations:
    """Operations of one kind: `begin(number, completion)` starts operation `number`.

    `begin` is called from MXNet's threads, when what the operation writes is free, and must not
    raise. This object must live as long as any of its operations.
    """

    def __init__(self, begin: Callable[[int, Completion], None]) -> None:
        def start(_: int, on_complete: ctypes._Pointer[_OnComplete], param: int | None) -> None:
            # The struct is gone when this returns.
            begin(param or 0, Completion(on_complete.contents))

        self._start = _AsyncFunc(start)
        self._context = mx.cpu()

    def push(self, number: int, writes: Array) -> None:
        """Queue operation `number`, which writes `writes`; returns at once."""
        check_call(
            _LIB.MXEnginePushAsyncND(
                self._start,
                ctypes.c_void_p(number),
                None,
                ctypes.byref(self._context_handle()),
                None,
                0,
                ctypes.byref(writes.handle),
                1,
                ctypes.byref(ctypes.c_int(PRIORITIZED)),
                0,
                NAME,
                ctypes.c_bool(False),
            )
        )

    def _context_handle(self) -> ctypes.Structure:
        return _Context(self._context.device_typeid, self._context.device_id)


class _Context(ctypes.Structure):
    """mxnet::Context."""

    _fields_ = (("dev_type", ctypes.c_int), ("dev_id", ctypes.c_int32))


def has_threads() -> bool:
    """Whether MXNet's engine can have operations under way that end later."""
    return os.environ.get("MXNET_ENGINE_TYPE") != "NaiveEngine"


def array_on(memory: npt.NDArray[np.generic]) -> Array:
    """An NDArray whose memory is numpy's: what one writes, the other has."""
    array: Array = mx.nd.from_numpy(memory, zero_copy=True)
    return array
