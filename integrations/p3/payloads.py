"""The buffers that travel: one flat tensor a dtype, every slice a contiguous view of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import torch

from p3.arithmetic import Add, Bytes
from p3.slicing import SlicePlan
from p3.tensors import adder, bytes_of


@dataclass(frozen=True, slots=True)
class Part:
    """Where a run of a parameter's gradient goes: which elements, to which slice, and there."""

    source: slice | None
    """None for all of them."""
    slice: int
    target: torch.Tensor


class Payloads:
    """Memory for a plan's slices, on the CPU.

    `slices[i]` is slice i's payload (1-D), `bytes[i]` the same memory, as engines see it; `adders`
    is what they add with. `gradients[p]` is parameter p's gradient, flattened: the segments of one
    parameter follow each other in memory; `parts[p]` is the way there. `dtypes` maps the plan's
    names of dtypes to torch's.
    """

    def __init__(self, plan: SlicePlan, dtypes: Mapping[str, torch.dtype]) -> None:
        self._scale = 1.0 / plan.world_size
        totals = dict.fromkeys(dtypes, 0)
        for piece in plan.slices:
            totals[piece.dtype] += piece.payload_numel
        flats = {name: torch.zeros(totals[name], dtype=dtypes[name]) for name in dtypes}
        used = dict.fromkeys(dtypes, 0)
        empty = torch.zeros(0)
        self.slices: list[torch.Tensor] = []
        self.gradients = [empty for _ in plan.parameters]
        self.parts: list[list[Part]] = [[] for _ in plan.parameters]
        self._flags: list[torch.Tensor] = []
        self._enders: list[list[int]] = []
        self._flag_of = [empty for _ in plan.parameters]
        self.adders: dict[str, Add] = {name: adder(dtypes[name]) for name in dtypes}
        for piece in plan.slices:
            start, flat = used[piece.dtype], flats[piece.dtype]
            used[piece.dtype] += piece.payload_numel
            self.slices.append(flat[start : used[piece.dtype]])
            self._flags.append(flat[start + piece.numel : used[piece.dtype]])
            self._enders.append([part.parameter for part in piece.segments if part.ends])
            for segment in piece.segments:
                number, numel = segment.parameter, plan.parameters[segment.parameter].numel
                run = slice(segment.start, segment.start + segment.numel)
                target = flat[start : start + segment.numel]
                source = None if segment.numel == numel else run
                self.parts[number].append(Part(source, piece.index, target))
                start += segment.numel
                if segment.ends:
                    self.gradients[number] = flat[start - numel : start]
            for place, number in enumerate(self._enders[-1]):
                self._flag_of[number] = self._flags[-1][place]
        self.bytes: list[Bytes] = [bytes_of(payload) for payload in self.slices]

    def flatten(self, parameter: int, tensor: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        """A tensor like a parameter in the order in which its elements travel, 1-D.

        A view where memory allows.
        """
        return tensor.reshape(-1)

    def arrange(self, parameter: int, flat: torch.Tensor, shape: torch.Size) -> torch.Tensor:  # noqa: ARG002
        """The other way round."""
        return flat.view(shape)

    def fill(self, part: Part, gradient: torch.Tensor | None) -> None:
        """Put a run of this rank's gradient there; zeros where it has none.

        `gradient` is the parameter's whole one, flattened. It is divided by the number of ranks,
        so that sums become means.
        """
        target = part.target
        if gradient is None:
            target.zero_()
            return
        if part.source is not None:
            gradient = gradient[part.source]
        if gradient.device == target.device and gradient.dtype == target.dtype:
            torch.mul(gradient, self._scale, out=target)
        else:
            target.copy_(gradient).mul_(self._scale)

    def seal(self, index: int, absent: Collection[int]) -> None:
        """Slice `index` is full: say of every parameter that ends there whether it had one."""
        self._flags[index].fill_(1)
        if absent:
            for place, number in enumerate(self._enders[index]):
                if number in absent:
                    self._flags[index][place] = 0

    def present(self, parameters: Iterable[int]) -> list[int]:
        """After the sum: those of `parameters` of which any rank had a gradient."""
        return [number for number in parameters if self._flag_of[number].item() > 0]
