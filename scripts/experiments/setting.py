"""An emulated network on links of a rate: what bench_emulated compares systems on. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from experiments.emulation import emulations
from p3.bounds import communication_s, iteration_bound_s
from p3_shaper.rates import Rate, parse_rate

SETTINGS = (
    "vgg19@750mbit",
    "vgg19@500mbit",
    "vgg19@350mbit",
    "resnet50@400mbit",
    "resnet50@300mbit",
)


@dataclass(frozen=True, slots=True)
class Setting:
    """Network `workload` of `experiments.emulation` on links of `rate`."""

    workload: str
    rate: Rate

    def __str__(self) -> str:
        return f"{self.workload}@{self.rate}"

    def bound_s(self, nodes: int) -> float:
        """Least seconds of an iteration."""
        profile = emulations()[self.workload].profile
        return iteration_bound_s(
            profile.compute_s,
            communication_s(profile.payload_bytes, nodes, self.rate.bits_per_second),
        )


def parse_setting(text: str) -> Setting:
    """The setting that a text like `vgg19@750mbit` means.

    ValueError for an unknown network or a text of another form; RateError for a bad rate.
    """
    workload, at, rate = text.partition("@")
    if not at or workload not in emulations():
        known = ", ".join(emulations())
        raise ValueError(f"setting {text!r}: write NETWORK@RATE, like vgg19@750mbit ({known})")
    return Setting(workload, parse_rate(rate))
