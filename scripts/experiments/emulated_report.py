"""What bench_emulated found: medians of rounds, spreads, shares of the bound, ratios. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from experiments.outcome import Outcome
from experiments.report import percent, seconds, table, times
from experiments.rounds import spread
from experiments.setting import Setting
from experiments.systems import EMULATED


class SystemRounds(msgspec.Struct, frozen=True):
    """One system in one setting: `iteration_s` is the median of the `rounds_s`.

    `rounds_s` are medians themselves; `spread` is their largest minus smallest over the median;
    `over_ddp` is DDP's time over this one's, None if DDP was not measured.
    """

    title: str
    iteration_s: float
    spread: float
    share_of_bound: float
    over_ddp: float | None
    rounds_s: list[float]
    cpu_s: float
    megabytes_sent: float
    iteration_times_s: list[list[float]]


class SettingRounds(msgspec.Struct, frozen=True):
    """One setting: the bound, and its systems by key.

    `bands_over_no_bands`: `groups` without agents over `groups`, None unless both were measured.
    """

    workload: str
    rate: str
    nodes: int
    bound_s: float
    bands_over_no_bands: float | None
    systems: dict[str, SystemRounds]


@dataclass(slots=True)
class Collected:
    """Outcomes of every round so far, in order, by the key of their system."""

    setting: Setting
    nodes: int
    outcomes: dict[str, list[Outcome]] = field(default_factory=dict)

    def add(self, key: str, outcome: Outcome) -> None:
        """One more round of system `key`."""
        self.outcomes.setdefault(key, []).append(outcome)

    def summary(self) -> SettingRounds:
        """The rounds so far as numbers."""
        medians = {key: _median(rounds) for key, rounds in self.outcomes.items()}
        bound = self.setting.bound_s(self.nodes)
        return SettingRounds(
            workload=self.setting.workload,
            rate=str(self.setting.rate),
            nodes=self.nodes,
            bound_s=bound,
            bands_over_no_bands=_ratio(medians, "groups_without_agent", "groups"),
            systems={
                system.key: SystemRounds(
                    title=system.title,
                    iteration_s=medians[system.key],
                    spread=spread([o.iteration_s for o in self.outcomes[system.key]]),
                    share_of_bound=bound / medians[system.key],
                    over_ddp=_ratio(medians, "ddp", system.key),
                    rounds_s=[o.iteration_s for o in self.outcomes[system.key]],
                    cpu_s=statistics.median(o.cpu_s for o in self.outcomes[system.key]),
                    megabytes_sent=self.outcomes[system.key][-1].megabytes_sent,
                    iteration_times_s=[o.iteration_times for o in self.outcomes[system.key]],
                )
                for system in EMULATED
                if system.key in self.outcomes
            },
        )


def _median(rounds: Sequence[Outcome]) -> float:
    return statistics.median(outcome.iteration_s for outcome in rounds)


def _ratio(medians: Mapping[str, float], slow: str, fast: str) -> float | None:
    return medians[slow] / medians[fast] if slow in medians and fast in medians else None


def text(settings: Sequence[SettingRounds]) -> str:
    """A table with a row for each setting and system, and the bands' worth for each setting."""
    header = ("setting", "system", "iteration", "spread", "of bound", "against DDP", "CPU")
    rows = [
        (
            f"{setting.workload} at {setting.rate}, bound {seconds(setting.bound_s)}",
            system.title,
            seconds(system.iteration_s),
            percent(system.spread),
            percent(system.share_of_bound),
            "-" if system.over_ddp is None else times(system.over_ddp),
            seconds(system.cpu_s),
        )
        for setting in settings
        for system in setting.systems.values()
    ]
    bands = [
        f"{setting.workload} at {setting.rate}: the kernel's bands against none, groups: "
        f"{times(setting.bands_over_no_bands)}"
        for setting in settings
        if setting.bands_over_no_bands is not None
    ]
    return "\n".join((table(header, rows), "", *bands))
