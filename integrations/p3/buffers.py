"""A model's buffers travel beside its gradients: with every step(), rank 0's replace all others'.

All of them are one run of bytes in the plan, as urgent as the first layer: they are small (batch
norm's statistics), and the forward pass of each module that owns some waits for them. Rank 0
hands its own over and nobody else hands anything, so that the sum is rank 0's, to the bit.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from p3.engine import P3Error
from p3.slicing import Parameter


class Buffers:
    """The buffers of one model, by module and name: a module may put another tensor there."""

    def __init__(self, model: nn.Module, rank: int) -> None:
        self._sends = rank == 0
        self._places: list[tuple[str, nn.Module, str]] = []
        found: dict[int, Tensor] = {}
        for path, module in model.named_modules():
            for name, tensor in module.named_buffers(recurse=False):
                if id(tensor) not in found:
                    found[id(tensor)] = tensor
                    self._places.append((f"{path}.{name}".lstrip("."), module, name))
        self._forms = [(tensor.shape, tensor.dtype) for tensor in found.values()]
        self.nbytes = sum(tensor.nbytes for tensor in found.values())
        self.planned = Parameter("buffers", self.nbytes, "uint8", itemsize=1, layer=0)
        self.example = torch.empty(self.nbytes, dtype=torch.uint8, device="meta")
        """What `pack` makes, without memory."""
        self.waiting = () if self._sends else tuple({module for _, module, _ in self._places})
        """Modules whose buffers come from elsewhere."""

    def pack(self) -> Tensor | None:
        """All bytes as they are now, 1-D, or None where another rank's count."""
        if not self._sends:
            return None
        return torch.cat([_bytes_of(tensor).cpu() for tensor in self._tensors()])

    def unpack(self, received: Tensor) -> None:
        """Take what `pack` made elsewhere."""
        if self._sends:
            return
        start = 0
        for tensor in self._tensors():
            flat = _bytes_of(tensor)
            flat.copy_(received[start : start + tensor.nbytes])
            if flat.data_ptr() != tensor.data_ptr():  # it is no run of memory
                tensor.copy_(flat.view(tensor.dtype).view(tensor.shape))
            start += tensor.nbytes

    def _tensors(self) -> Iterator[Tensor]:
        for (path, module, name), form in zip(self._places, self._forms, strict=True):
            tensor = module._buffers.get(name)
            if tensor is None or (tensor.shape, tensor.dtype) != form:
                raise P3Error(
                    f"buffer {path} has not the shape or dtype any more that it had at "
                    "distribute(): keep them, or use broadcast_buffers=False"
                )
            yield tensor.detach()


def _bytes_of(tensor: Tensor) -> Tensor:
    """1-D; a view where the tensor is a run of memory."""
    return tensor.reshape(-1).view(torch.uint8)
