"""Networks whose layers only take the time that a device would take, and carry real parameters.

Nodes of a test cluster share a few processors, so real layers would contend for them and nodes
would drift apart. A device of its own computes while the processor is free: an emulated layer
sleeps instead. Parameters, gradients, hooks and bytes are real.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

from experiments.device_clock import DeviceClock
from experiments.emulation import Emulation
from p3.profile import LayerProfile


class EmulatedLayer(nn.Module):
    """Parameters of a profiled layer's sizes, and passes of its durations.

    Input and output are a scalar. Every tensor's first element is added to it, so that the loss
    follows the parameters; a tensor's gradient is `gradient_scale` times its value, which costs
    little and differs from rank to rank.
    """

    def __init__(self, layer: LayerProfile, clock: DeviceClock, gradient_scale: float) -> None:
        super().__init__()
        self.forward_s = layer.forward_s
        self.backward_s = layer.backward_s
        self.clock = clock
        self.gradient_scale = gradient_scale
        for number, numel in enumerate(layer.numels):
            self.register_parameter(f"tensor{number}", nn.Parameter(torch.rand(numel)))

    def forward(self, value: Tensor) -> Tensor:
        """Scalar in, scalar out, after `forward_s`."""
        return _apply(value, self, *self.parameters(recurse=False))


class _Context(FunctionCtx):
    layer: EmulatedLayer
    saved_tensors: tuple[Tensor, ...]


class _Emulated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _Context, value: Tensor, layer: EmulatedLayer, *tensors: Tensor) -> Tensor:
        layer.clock.begin_forward(layer.forward_s)
        ctx.layer = layer
        ctx.save_for_backward(*tensors)
        result = value + torch.stack([tensor[0] for tensor in tensors]).sum()
        layer.clock.end_forward()
        return result

    @staticmethod
    def backward(ctx: _Context, gradient: Tensor) -> tuple[Tensor | None, ...]:
        layer = ctx.layer
        layer.clock.begin_backward(layer.backward_s)
        gradients = [tensor * layer.gradient_scale for tensor in ctx.saved_tensors]
        layer.clock.end_backward()
        return (gradient, None, *gradients)


# torch leaves Function.apply untyped.
_apply = cast(Callable[..., Tensor], _Emulated.apply)


def emulated_network(
    emulation: Emulation, rank: int, clock: DeviceClock | None = None
) -> nn.Module:
    """The network as a sequence of emulated layers; the torch seed decides its parameters."""
    clock = clock or DeviceClock()
    scale = 1e-3 * (rank + 1)
    return nn.Sequential(
        *(EmulatedLayer(layer, clock, scale) for layer in emulation.profile.layers)
    )
