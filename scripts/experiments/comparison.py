"""Several systems' trainings side by side, against the bound: what the demo prints and writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from experiments.outcome import Outcome, largest_difference
from experiments.report import percent, seconds, table, times
from experiments.systems import DEMO
from p3.bounds import communication_s, iteration_bound_s
from p3_shaper.rates import Rate

LOSS_TOLERANCE = 1e-3
"""Largest relative difference of two loss curves that float addition in another order explains.

Sums differ in the last bit, and training amplifies that from iteration to iteration.
"""


class SystemNumbers(msgspec.Struct, frozen=True):
    """One system's numbers as JSON has them."""

    title: str
    iteration_s: float
    images_per_s: float
    share_of_bound: float
    loss: float
    accuracy: float
    megabytes_sent: float
    cpu_s: float
    parameters_sha256: str | None
    iteration_times_s: list[float]
    losses: list[float]


class Numbers(msgspec.Struct, frozen=True):
    """Everything that a demo measured, as JSON has it."""

    nodes: int
    rate: str
    port_buffer_bytes: int
    model: str
    parameters: int
    compute_s: float
    communication_s: float
    bound_s: float
    p3_over_ddp: float
    bands_over_no_bands: float
    largest_loss_difference: float
    loss_curves_agree: bool
    ranks_identical: bool
    runs_identical: bool
    systems: dict[str, SystemNumbers]


@dataclass(frozen=True, slots=True)
class Setting:
    """What was trained on what."""

    nodes: int
    rate: Rate
    port_buffer: int
    model: str


def compare(setting: Setting, outcomes: Mapping[str, Outcome]) -> Numbers:
    """The demo's numbers; `outcomes` has every key of `systems.DEMO`."""
    baseline, bandless, p3 = (outcomes[system.key] for system in DEMO)
    communication = communication_s(
        baseline.parameter_bytes, setting.nodes, setting.rate.bits_per_second
    )
    bound = iteration_bound_s(baseline.compute_s, communication)
    difference = max(largest_difference(baseline.losses, o.losses) for o in (bandless, p3))
    digests = {outcomes[system.key].digest for system in DEMO if system.engine}
    return Numbers(
        nodes=setting.nodes,
        rate=str(setting.rate),
        port_buffer_bytes=setting.port_buffer,
        model=setting.model,
        parameters=baseline.ranks[0].parameters,
        compute_s=baseline.compute_s,
        communication_s=communication,
        bound_s=bound,
        p3_over_ddp=baseline.iteration_s / p3.iteration_s,
        bands_over_no_bands=bandless.iteration_s / p3.iteration_s,
        largest_loss_difference=difference,
        loss_curves_agree=difference <= LOSS_TOLERANCE,
        ranks_identical=all(outcomes[system.key].digest for system in DEMO),
        runs_identical=len(digests) == 1 and None not in digests,
        systems={s.key: _numbers(s.title, outcomes[s.key], bound) for s in DEMO},
    )


def _numbers(title: str, outcome: Outcome, bound_s: float) -> SystemNumbers:
    if outcome.accuracy is None:
        raise ValueError(f"{title}: its workload has no test set")
    return SystemNumbers(
        title=title,
        iteration_s=outcome.iteration_s,
        images_per_s=outcome.images_per_s,
        share_of_bound=bound_s / outcome.iteration_s,
        loss=outcome.loss,
        accuracy=outcome.accuracy,
        megabytes_sent=outcome.megabytes_sent,
        cpu_s=outcome.cpu_s,
        parameters_sha256=outcome.digest,
        iteration_times_s=outcome.iteration_times,
        losses=outcome.losses,
    )


def text(numbers: Numbers) -> str:
    """The table, the ratios, and whether all systems computed the same."""
    header = ("system", "iteration", "images/s", "of bound", "loss", "accuracy", "MB sent a node")
    rows = [
        (
            system.title,
            seconds(system.iteration_s),
            f"{system.images_per_s:.0f}",
            percent(system.share_of_bound),
            f"{system.loss:.4f}",
            percent(system.accuracy),
            f"{system.megabytes_sent:.1f}",
        )
        for system in numbers.systems.values()
    ]
    return "\n".join((table(header, rows), "", *_sentences(numbers)))


def _sentences(numbers: Numbers) -> tuple[str, ...]:
    agree = "agree with" if numbers.loss_curves_agree else "DIFFER FROM"
    ranks = "identical" if numbers.ranks_identical else "DIFFERENT"
    runs = "identical" if numbers.runs_identical else "DIFFERENT"
    return (
        f"bound {seconds(numbers.bound_s)}: computing {seconds(numbers.compute_s)}, "
        f"communication {seconds(numbers.communication_s)}, whichever is longer",
        f"P3 with agents against DDP: {times(numbers.p3_over_ddp)}",
        f"the kernel's bands against none: {times(numbers.bands_over_no_bands)}",
        f"P3's loss curves {agree} DDP's (largest difference "
        f"{numbers.largest_loss_difference:.1e})",
        f"parameters at the end: {ranks} on all nodes; "
        f"{runs}, bit for bit, with and without agents",
    )
