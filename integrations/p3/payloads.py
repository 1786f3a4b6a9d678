"""The buffers that travel: one flat tensor a dtype, every slice a contiguous view of it."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from p3.slicing import Segment, SlicePlan


class Payloads:
    """Memory for a plan's slices, on the CPU.

    `slices[i]` is slice i's payload (1-D). `gradients[p]` is parameter p's gradient, flattened:
    the segments of one parameter follow each other in memory. `dtypes` maps the plan's names of
    dtypes to torch's.
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
        self._flags = [empty for _ in plan.parameters]
        for piece in plan.slices:
            start, flat = used[piece.dtype], flats[piece.dtype]
            used[piece.dtype] += piece.payload_numel
            self.slices.append(flat[start : used[piece.dtype]])
            flag = start + piece.numel
            for segment in piece.segments:
                start += segment.numel
                if segment.ends:
                    numel = plan.parameters[segment.parameter].numel
                    self.gradients[segment.parameter] = flat[start - numel : start]
                    self._flags[segment.parameter] = flat[flag : flag + 1]
                    flag += 1

    def fill(self, segment: Segment, gradient: torch.Tensor | None) -> None:
        """Put a segment of this rank's gradient there; None where it has no gradient.

        `gradient` is the parameter's whole one, flattened. It is divided by the number of ranks,
        so that sums become means.
        """
        here = slice(segment.start, segment.start + segment.numel)
        target = self.gradients[segment.parameter][here]
        if gradient is None:
            target.zero_()
        elif gradient.device == target.device and gradient.dtype == target.dtype:
            torch.mul(gradient[here], self._scale, out=target)
        else:
            target.copy_(gradient[here]).mul_(self._scale)
        if segment.ends:
            self._flags[segment.parameter].fill_(gradient is not None)

    def is_present(self, parameter: int) -> bool:
        """After the sum: whether any rank had a gradient."""
        return bool(self._flags[parameter].item() > 0)
