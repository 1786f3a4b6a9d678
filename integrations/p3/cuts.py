"""Ways to cut a model's layers into bands. Pure.

All take bytes by layer in forward order, when a forward pass needs each layer (any unit), and the
most bands there may be; they return the first layer of every band but band 0, ascending. No band is
empty, so fewer may come of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Cutting = Callable[[Floats, Floats, int], tuple[int, ...]]


def least_delay(sizes: Floats, needed: Floats, bands: int) -> tuple[int, ...]:
    """Makes the sum of (bytes x time from their band's first layer to their own) least.

    A later layer's gradient appears first, so inside a band its bytes stand before those of every
    earlier layer, though they are needed later. Layers needed at nearly one time, such as the
    last, large and quick ones of VGG, so share a band: one more would only starve some of them.
    """
    layers = len(sizes)
    total = np.concatenate(([0.0], np.cumsum(sizes)))
    moment = np.concatenate(([0.0], np.cumsum(sizes * needed)))

    def delays(end: int) -> Floats:
        """Delay inside a run [start, end), for every start below `end`."""
        waiting: Floats = moment[end] - moment[:end]
        waiting -= needed[:end] * (total[end] - total[:end])
        return waiting

    best = np.array([np.inf if end else 0.0 for end in range(layers + 1)])
    choices: list[list[int]] = []
    for _ in range(min(bands, layers)):
        following = best.copy()
        choice = list(range(layers + 1))
        for end in range(1, layers + 1):
            through = best[:end] + delays(end)
            start = int(through.argmin())
            if through[start] < following[end]:
                following[end], choice[end] = through[start], start
        choices.append(choice)
        best = following
    cuts: list[int] = []
    end = layers
    for choice in reversed(choices):
        end = choice[end]
        cuts.append(end)
    return _proper(cuts, layers)


def equal_count(sizes: Floats, needed: Floats, bands: int) -> tuple[int, ...]:  # noqa: ARG001
    """As many layers in each band."""
    return _proper([round(band * len(sizes) / bands) for band in range(1, bands)], len(sizes))


def equal_bytes(sizes: Floats, needed: Floats, bands: int) -> tuple[int, ...]:  # noqa: ARG001
    """As many bytes in each band, as far as whole layers allow."""
    return _at_shares(sizes, [band / bands for band in range(1, bands)])


def geometric(sizes: Floats, needed: Floats, bands: int) -> tuple[int, ...]:  # noqa: ARG001
    """Each band with twice the bytes of the one before it."""
    return _at_shares(sizes, [(2.0**band - 1) / (2.0**bands - 1) for band in range(1, bands)])


@dataclass(frozen=True, slots=True)
class Given:
    """These cuts, whatever the layers are."""

    cuts: tuple[int, ...]

    def __call__(self, sizes: Floats, needed: Floats, bands: int) -> tuple[int, ...]:  # noqa: ARG002
        """ValueError when there are more than `bands` allow, or none so late."""
        if len(self.cuts) >= bands or _proper(self.cuts, len(sizes)) != self.cuts:
            raise ValueError(f"cuts {self.cuts}: {len(sizes)} layers have {bands} bands at most")
        return self.cuts


ONE_BAND = Given(())
CUTTINGS: Mapping[str, Cutting] = {
    "one-band": ONE_BAND,
    "equal-count": equal_count,
    "equal-bytes": equal_bytes,
    "geometric": geometric,
    "least-delay": least_delay,
}


def _at_shares(sizes: Floats, shares: list[float]) -> tuple[int, ...]:
    """Between layers, where the parts of all bytes before are nearest to `shares`."""
    before = np.concatenate(([0.0], np.cumsum(sizes)))
    wanted = np.asarray(shares) * before[-1]
    return _proper([int(np.abs(before - bytes_).argmin()) for bytes_ in wanted], len(sizes))


def _proper(cuts: list[int] | tuple[int, ...], layers: int) -> tuple[int, ...]:
    return tuple(sorted(set(cuts) - {0, layers}))
