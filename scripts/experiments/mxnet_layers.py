"""Layers for MXNet that only take the time that a device would take, and carry real parameters.

As `emulated_layers` for torch: parameters, gradients and bytes are real, computing is sleeping.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import mxnet as mx
from mxnet import gluon

from experiments.device_clock import DeviceClock
from experiments.emulation import Emulation
from p3.profile import LayerProfile


@dataclass(frozen=True, slots=True)
class Span:
    """A layer that computed, in seconds of perf_counter."""

    name: str
    layer: int
    begin: float
    end: float


class _Operator(mx.operator.CustomOp):  # type: ignore[misc]
    """Scalar in, scalar out, after its time; MXNet runs it when the parameters are there."""

    def __init__(self, layer: int, forward_s: float, backward_s: float, scale: float) -> None:
        super().__init__()
        self._layer = layer
        self._forward_s = forward_s
        self._backward_s = backward_s
        self._scale = scale

    def forward(
        self,
        is_train: bool,
        req: list[str],
        in_data: list[mx.nd.NDArray],
        out_data: list[mx.nd.NDArray],
        aux: list[mx.nd.NDArray],
    ) -> None:
        """Take the layer's time."""
        del is_train, req, aux
        began = time.perf_counter()
        _clock.begin_forward(self._forward_s)
        mx.nd.broadcast_add(in_data[0], in_data[1][:1], out=out_data[0])
        _clock.end_forward()
        spans.append(Span("forward", self._layer, began, time.perf_counter()))

    def backward(  # noqa: PLR0917  (MXNet's)
        self,
        req: list[str],
        out_grad: list[mx.nd.NDArray],
        in_data: list[mx.nd.NDArray],
        out_data: list[mx.nd.NDArray],
        in_grad: list[mx.nd.NDArray],
        aux: list[mx.nd.NDArray],
    ) -> None:
        """Take the layer's time; a gradient is a part of its parameter's value."""
        del req, out_data, aux
        began = time.perf_counter()
        _clock.begin_backward(self._backward_s)
        out_grad[0].copyto(in_grad[0])
        for value, gradient in zip(in_data[1:], in_grad[1:], strict=True):
            # A processor shared by all nodes is not to be busy with this: one operation each.
            mx.nd._internal._mul_scalar(value, scalar=self._scale, out=gradient)
        _clock.end_backward()
        spans.append(Span("backward", self._layer, began, time.perf_counter()))


_clock = DeviceClock()
"""MXNet makes operators from strings alone; a process has one device."""
spans: list[Span] = []
"""What the device has done, in order."""


@mx.operator.register("p3_emulated")
class _Property(mx.operator.CustomOpProp):  # type: ignore[misc]
    def __init__(
        self, layer: str, forward_s: str, backward_s: str, scale: str, tensors: str
    ) -> None:
        super().__init__(need_top_grad=True)
        self._layer = int(layer)
        self._forward_s = float(forward_s)
        self._backward_s = float(backward_s)
        self._scale = float(scale)
        self._tensors = int(tensors)

    def list_arguments(self) -> list[str]:
        """The scalar, then the parameters."""
        return ["value", *(f"tensor{number}" for number in range(self._tensors))]

    def infer_shape(
        self, in_shape: list[list[int]]
    ) -> tuple[list[list[int]], list[list[int]], list[list[int]]]:
        """A scalar comes out."""
        return in_shape, [in_shape[0]], []

    def create_operator(self, *_: object) -> _Operator:
        """One operator."""
        return _Operator(self._layer, self._forward_s, self._backward_s, self._scale)


class EmulatedLayer(gluon.Block):  # type: ignore[misc]
    """Parameters of a profiled layer's sizes, and passes of its durations."""

    def __init__(self, number: int, layer: LayerProfile, scale: float) -> None:
        super().__init__()
        self._number = number
        self._layer = layer
        self._scale = scale
        self._tensors = [
            self.params.get(f"tensor{number}", shape=(numel,))
            for number, numel in enumerate(layer.numels)
        ]

    def forward(self, value: mx.nd.NDArray) -> mx.nd.NDArray:
        """Scalar in, scalar out."""
        return mx.nd.Custom(
            value,
            *(tensor.data() for tensor in self._tensors),
            layer=self._number,
            forward_s=self._layer.forward_s,
            backward_s=self._layer.backward_s,
            scale=self._scale,
            tensors=len(self._tensors),
            op_type="p3_emulated",
        )


def emulated_network(emulation: Emulation, rank: int) -> gluon.Block:
    """The network as a sequence of emulated layers."""
    net = gluon.nn.Sequential()
    for number, layer in enumerate(emulation.profile.layers):
        net.add(EmulatedLayer(number, layer, 1e-3 * (rank + 1)))
    return net
