"""Real trainings to compare in accuracy, and what they came to. Pure.

The paper's section 5.6 holds P3 against gradient compression, and asynchronous SGD, by accuracy.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise
from statistics import fmean, median

import msgspec

from experiments.messages import Finished
from experiments.outcome import largest_difference
from experiments.report import table
from p3.codecs import CODECS
from p3.engines import NO_CODEC

WORKLOAD = "digits-small"
NODES = 4
SINGLE = "single"
SYSTEMS = ("ddp", "p3", "p3-groups", "asgd")


class Lesson(msgspec.Struct, frozen=True):
    """One training of `iterations` on all nodes, or of all nodes' batches on one (`single`).

    `system` is SINGLE, "ddp", or one of `compared.COMPARED`; `every` so many iterations accuracy
    is measured.
    """

    system: str
    codec: str
    iterations: int
    every: int

    @property
    def title(self) -> str:
        """As tables have it."""
        return self.system if self.codec == NO_CODEC else f"{self.system}, {self.codec}"


class Learned(msgspec.Struct, frozen=True):
    """What a lesson came to: losses over the joint batch, accuracies on the test set.

    `megabytes` is what a node's device sent an iteration; `identical` says whether all nodes'
    parameters were the same at the end, bit for bit.
    """

    lesson: Lesson
    losses: list[float]
    accuracies: list[float]
    iteration_s: float
    megabytes: float
    identical: bool


def lessons(iterations: int, every: int, systems: Collection[str]) -> list[Lesson]:
    """One process, and those of `systems` among DDP, P3's engines, asynchronous SGD.

    P3's parameter server comes with each codec as well.
    """
    compared = (system for system in SYSTEMS if system in systems)
    plain = [Lesson(system, NO_CODEC, iterations, every) for system in (SINGLE, *compared)]
    codecs = CODECS if "p3" in systems else ()
    return [*plain, *(Lesson("p3", codec, iterations, every) for codec in codecs)]


def learned(lesson: Lesson, ranks: Sequence[Finished]) -> Learned:
    """From what the ranks told, in rank order."""
    first = ranks[0]
    curves = [first.losses] if lesson.system == SINGLE else [rank.losses for rank in ranks]
    steps = [later - start for start, later in pairwise([*first.starts, first.ended])]
    return Learned(
        lesson=lesson,
        losses=[fmean(losses) for losses in zip(*curves, strict=True)],
        accuracies=first.accuracies,
        iteration_s=median(steps),
        megabytes=fmean(rank.sent_bytes for rank in ranks) / 1e6 / lesson.iterations,
        identical=len({rank.digest for rank in ranks}) == 1,
    )


def text(found: Sequence[Learned]) -> str:
    """A row a lesson; the largest difference is of loss curves, to DDP's."""
    ddp = next((one for one in found if one.lesson.system == "ddp"), None)
    header = ("system", "accuracy", "loss", "difference to DDP's", "MB an iteration", "identical")
    rows = [
        (
            one.lesson.title,
            f"{one.accuracies[-1]:.1%}" if one.accuracies else "-",
            f"{one.losses[-1]:.4f}",
            "-" if ddp is None else f"{largest_difference(ddp.losses, one.losses):.1e}",
            f"{one.megabytes:.2f}",
            "-" if one.lesson.system == SINGLE else "yes" if one.identical else "no",
        )
        for one in found
    ]
    return table(header, rows)
