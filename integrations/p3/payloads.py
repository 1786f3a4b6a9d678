"""The buffers that travel: one flat tensor a dtype, every slice a contiguous view of it."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import torch

from p3.arithmetic import Add, Bytes
from p3.slicing import SlicePlan
from p3.tensors import adder, bytes_of, dtype_name


class SparseGradientWarning(UserWarning):
    """A gradient is sparse and travels dense, with all its zeros."""


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
    is what they add with. `gradients[p]` has the shape of parameter p: the segments of one
    parameter follow each other in memory; `parts[p]` is the way there. `orders[p]` are its
    dimensions from the outermost in memory to the innermost: in this order its elements travel.
    """

    def __init__(self, plan: SlicePlan, parameters: Sequence[torch.Tensor]) -> None:
        self._plan = plan
        # A tensor, as torch takes more time to make one of a number than to multiply.
        self._scale = torch.tensor(1.0 / plan.world_size, dtype=torch.float64)
        self._sparse_known = False
        self.orders = tuple(map(_memory_order, parameters))
        self._reordered = {
            number for number, order in enumerate(self.orders) if order != (*range(len(order)),)
        }
        dtypes = {dtype_name(parameter.dtype): parameter.dtype for parameter in parameters}
        layout = plan.layout()
        flats = {
            name: torch.zeros(total, dtype=dtypes[name]) for name, total in layout.totals.items()
        }
        wholes = [
            flats[parameter.dtype][start : start + parameter.numel]
            for parameter, start in zip(plan.parameters, layout.parameters, strict=True)
        ]
        self.slices: list[torch.Tensor] = []
        self.gradients = [
            self.arrange(number, whole, parameter.shape)
            for number, (whole, parameter) in enumerate(zip(wholes, parameters, strict=True))
        ]
        self.parts: list[list[Part]] = [[] for _ in plan.parameters]
        self._flags: list[torch.Tensor] = []
        self._enders: list[list[int]] = []
        self._flag_of = [(0, 0) for _ in plan.parameters]
        self.adders: dict[str, Add] = {name: adder(dtypes[name]) for name in dtypes}
        for piece, start in zip(plan.slices, layout.slices, strict=True):
            payload = flats[piece.dtype][start : start + piece.payload_numel]
            self.slices.append(payload)
            self._flags.append(payload[piece.numel :].real)
            self._enders.append([part.parameter for part in piece.segments if part.ends])
            for segment in piece.segments:
                whole = wholes[segment.parameter]
                run = slice(segment.start, segment.start + segment.numel)
                source = None if segment.numel == len(whole) else run
                self.parts[segment.parameter].append(Part(source, piece.index, whole[run]))
            for place, number in enumerate(self._enders[-1]):
                self._flag_of[number] = (piece.index, place)
        self.bytes: list[Bytes] = [bytes_of(payload) for payload in self.slices]

    def flatten(self, parameter: int, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor like a parameter in the order in which its elements travel: dense, 1-D.

        A view where memory allows.
        """
        if tensor.layout is not torch.strided:
            self._warn_of_sparse(parameter)
            tensor = tensor.to_dense()
        if parameter in self._reordered:
            tensor = tensor.permute(self.orders[parameter])
        return tensor if tensor.dim() == 1 else tensor.reshape(-1)

    def arrange(self, parameter: int, flat: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        """The other way round; a view."""
        if parameter not in self._reordered:
            return flat.view(shape)
        order = self.orders[parameter]
        places = sorted(range(len(order)), key=order.__getitem__)
        return flat.view([shape[dimension] for dimension in order]).permute(places)

    def fill(self, part: Part, gradient: torch.Tensor | None) -> None:
        """Put a run of this rank's gradient there; zeros where it has none.

        `gradient` is the parameter's whole one, flattened. It is divided by the number of ranks,
        so that sums become means; bytes, which are no gradient, are not.
        """
        target = part.target
        if gradient is None:
            target.zero_()
            return
        if part.source is not None:
            gradient = gradient[part.source]
        if target.dtype is torch.uint8:
            target.copy_(gradient)
        elif gradient.device == target.device and gradient.dtype == target.dtype:
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
        found: list[int] = []
        flags: dict[int, list[float]] = {}
        for number in parameters:
            index, place = self._flag_of[number]
            if index not in flags:
                flags[index] = self._flags[index].tolist()
            if flags[index][place] > 0:
                found.append(number)
        return found

    def _warn_of_sparse(self, number: int) -> None:
        if self._sparse_known:
            return
        self._sparse_known = True
        parameter = self._plan.parameters[number]
        warnings.warn(
            f"the gradient of {parameter.name} is sparse: it travels dense, "
            f"{parameter.numel * parameter.itemsize / 1e6:.1f} MB an iteration; the result is that "
            "of sparse=False, which saves the conversion",
            SparseGradientWarning,
            stacklevel=2,
        )


def _memory_order(tensor: torch.Tensor) -> tuple[int, ...]:
    """Dimensions by falling stride; those of one element, whose strides mean nothing, last."""
    strides = [
        step if size > 1 else 0 for size, step in zip(tensor.shape, tensor.stride(), strict=True)
    ]
    return tuple(sorted(range(tensor.dim()), key=lambda dimension: -strides[dimension]))
