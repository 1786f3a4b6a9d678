"""Published networks made smaller, and how long a device would compute them. Pure, no torch."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from experiments.architectures import Architecture, Layer, resnet50, vgg19


@dataclass(frozen=True, slots=True)
class Emulation:
    """How a network is emulated: tensors `shrink` times smaller, `compute_s` an iteration.

    A third of the time is the forward pass, the rest backward, split by each layer's operations.
    """

    architecture: Architecture
    shrink: int
    compute_s: float

    def tensor_numels(self, layer: Layer) -> tuple[int, ...]:
        """Elements of each of the layer's tensors."""
        return tuple(max(1, prod(shape) // self.shrink) for shape in layer.shapes)

    @property
    def numel(self) -> int:
        """Elements of the whole emulated network."""
        return sum(sum(self.tensor_numels(layer)) for layer in self.architecture.layers)

    def forward_s(self, layer: Layer) -> float:
        """Seconds of the layer's forward pass; backward takes twice as long."""
        return self.compute_s / 3 * layer.flops / self.architecture.flops


def emulations() -> dict[str, Emulation]:
    """The emulated networks by name, in the sizes that the facts were measured with."""
    return {"vgg19": Emulation(vgg19(), 20, 0.5), "resnet50": Emulation(resnet50(), 10, 0.3)}
