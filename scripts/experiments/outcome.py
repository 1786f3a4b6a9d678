"""What one training by one system came to, from what its ranks told."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from experiments.messages import Finished

WARM_UP = 4
"""Iterations left out at the start: buffers are made, DDP rebuilds its buckets."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One system's training; `ranks` in rank order, at least one.

    Times are rank 0's: the nodes of a synchronous training go at one pace.
    """

    ranks: tuple[Finished, ...]

    def __post_init__(self) -> None:
        if not self.ranks:
            raise ValueError("an outcome without a rank: the run told no result")

    @property
    def iteration_times(self) -> list[float]:
        """Seconds from each iteration's start to the next one's, all of them.

        A step() that returns at once shows in the next iteration: only start to start is fair.
        """
        first = self.ranks[0]
        return [later - start for start, later in pairwise([*first.starts, first.ended])]

    @property
    def steady_times(self) -> list[float]:
        """The iteration times after the warm-up, without the last."""
        # The last one has no next forward pass to overlap with.
        times = self.iteration_times[:-1] or self.iteration_times
        return times[min(WARM_UP, len(times) // 3) :]

    @property
    def iteration_s(self) -> float:
        """Median seconds of an iteration."""
        return statistics.median(self.steady_times)

    @property
    def images_per_s(self) -> float:
        """Images of all nodes a second."""
        return len(self.ranks) * self.ranks[0].images / self.iteration_s

    @property
    def losses(self) -> list[float]:
        """The loss of each iteration over the joint batch of all nodes."""
        curves = (rank.losses for rank in self.ranks)
        return [statistics.fmean(losses) for losses in zip(*curves, strict=True)]

    @property
    def loss(self) -> float:
        """The last iteration's loss."""
        return self.losses[-1]

    @property
    def accuracy(self) -> float | None:
        """Part of the test set that is named right at the end; None without a test set."""
        return self.ranks[0].accuracy

    @property
    def megabytes_sent(self) -> float:
        """Megabytes (10^6) that a node's device sent, headers and all: the mean over nodes."""
        return statistics.fmean(rank.sent_bytes for rank in self.ranks) / 1e6

    @property
    def compute_s(self) -> float:
        """Seconds that an iteration takes without communication: the median over nodes."""
        return statistics.median(rank.compute_s for rank in self.ranks)

    @property
    def cpu_s(self) -> float:
        """Processor seconds of an iteration and node: the mean over nodes."""
        return statistics.fmean(rank.cpu_s / len(rank.losses) for rank in self.ranks)

    @property
    def parameter_bytes(self) -> int:
        """Bytes of gradients an iteration."""
        return 4 * self.ranks[0].parameters

    @property
    def digest(self) -> str | None:
        """The SHA-256 that every rank's parameters have; None when ranks differ."""
        digests = {rank.digest for rank in self.ranks}
        return digests.pop() if len(digests) == 1 else None


def largest_difference(one: Sequence[float], other: Sequence[float]) -> float:
    """The largest difference of two loss curves at the same iteration, relative to 1 or the loss.

    ValueError when one has more iterations than the other.
    """
    pairs = zip(one, other, strict=True)
    return max((abs(a - b) / max(1.0, abs(a)) for a, b in pairs), default=0.0)
