"""What training cost so far: waits by layer, bytes by band, how much was hidden. Always on.

Counting takes a comparison and an addition a slice, and reads a clock only when the training
thread waits anyway, or when the first slice leaves and the last one is back.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from p3.slicing import SlicePlan


@dataclass(frozen=True, slots=True)
class Statistics:
    """One rank's training since the engine opened, with the first gradient. Seconds and bytes.

    `iterations` have ended, dropped ones among them. `waited_by_layer` tells, by the name of the
    module whose parameters they were, how long the training thread waited for updates in forward
    and backward passes; `waited_elsewhere_s` how long in `synchronize`, `state_dict` and the like.
    `payload_bytes_by_band` is what this rank handed to the network, without headers.
    `communication_s` is the time in which at least one slice was under way: handed over, its sum
    not back.
    """

    iterations: int = 0
    waited_by_layer: Mapping[str, float] = field(default_factory=dict)
    waited_elsewhere_s: float = 0.0
    payload_bytes_by_band: tuple[int, ...] = ()
    communication_s: float = 0.0

    @property
    def waited_s(self) -> float:
        """All waits of the training thread."""
        return sum(self.waited_by_layer.values()) + self.waited_elsewhere_s

    @property
    def overlap(self) -> float:
        """The share of the communication that computing hid: 1 - waited_s / communication_s.

        Between 0 and 1, and 1 where there was none. A wait lasts until the update is made, so
        that it may be a little longer than the communication it waits for.
        """
        if self.communication_s == 0:
            return 1.0
        return max(0.0, 1 - self.waited_s / self.communication_s)


class Meter:
    """Counts one exchange's waits and its time under way.

    `hands_over` is the training thread's, and so are the waits; `comes_back` is called under the
    exchange's lock. Neither needs one for the other: a slice handed over just as the last one
    comes back only makes the time between them, microseconds, count as communication.
    """

    def __init__(self, layers: int) -> None:
        self.waited_s = [0.0] * layers
        self.waited_elsewhere_s = 0.0
        self.communication_s = 0.0
        self._handed_over = 0
        self._back = 0
        self._since = 0.0

    def hands_over(self) -> None:
        """A slice goes to the engine."""
        if self._handed_over == self._back:
            self._since = time.perf_counter()
        self._handed_over += 1

    def comes_back(self) -> None:
        """A slice's sum is there."""
        self._back += 1
        if self._back == self._handed_over:
            now = time.perf_counter()
            self.communication_s += now - self._since
            self._since = now

    def waited(self, layer: int | None, seconds: float) -> None:
        """The training thread waited for `layer`, or for all of them."""
        if layer is None:
            self.waited_elsewhere_s += seconds
        else:
            self.waited_s[layer] += seconds


def layer_names(plan: SlicePlan) -> tuple[str, ...]:
    """What to call each layer, in forward order: its first parameter's module.

    Where that is taken by an earlier layer, or there is no module, the parameter's own name.
    """
    first: dict[int, str] = {}
    for parameter in plan.parameters:
        first.setdefault(parameter.layer, parameter.name)
    names: dict[str, None] = {}
    for layer in range(plan.layers):
        name = first.get(layer, f"layer {layer}")
        module = name.rpartition(".")[0]
        names[module if module and module not in names else name] = None
    return tuple(names)
