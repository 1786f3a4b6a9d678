"""What is measured, and the file that keeps it: one JSON object a line, so that a run can go on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from experiments.emulation import PAPER_BATCH, paper_profiles
from p3.bounds import communication_s
from p3.cuts import CUTTINGS, Given
from p3.profile import Profile
from p3.systems import SYSTEMS, System
from p3_shaper.rates import Rate

GIGABIT = 1_000_000_000
USUAL_CUTTING = "least-delay"
OPTIMISED = "optimised"


@cache
def _emulated(model: str, scale: int, compute_s: float) -> Profile:
    whole = paper_profiles()[model]
    return whole.shrunk(scale).slowed(compute_s / whole.compute_s)


class Point(msgspec.Struct, frozen=True):
    """One setting of one system, in the paper's own sizes.

    `gbit` is a link's rate, `slice_numel` the most elements of a slice (0 for systems without),
    `bucket_mib` DDP's buckets (0 for all others), `samples_per_s` what one machine does without a
    network, `port_buffer` bytes of a switch port, which are not scaled. Tensors, slices and rates
    are divided by `scale`; a slice keeps `least_slice` elements at least, since a message costs
    this machine's processor as much at any scale. In `slow` motion times are multiplied and rates
    divided once more. Every `sample_s` the link's counters are read, which costs processor time.
    `cutting` names a way to cut bands, one of `cuts.CUTTINGS` or `OPTIMISED`, which has `cuts`.
    """

    model: str
    system: str
    nodes: int
    gbit: float
    slice_numel: int
    bucket_mib: float
    port_buffer: int
    samples_per_s: float
    scale: int
    slow: float
    least_slice: int
    iterations: int
    sample_s: float
    cutting: str = USUAL_CUTTING
    cuts: tuple[int, ...] = ()

    @property
    def kind(self) -> System:
        """The system as a value."""
        cutting = Given(self.cuts) if self.cutting == OPTIMISED else CUTTINGS[self.cutting]
        return replace(SYSTEMS[self.system], cutting=cutting)

    @property
    def title(self) -> str:
        """The system in words."""
        if self.bucket_mib:
            return f"{self.kind.title}, buckets of {self.bucket_mib:g} MiB"
        if self.cutting != USUAL_CUTTING:
            return f"{self.kind.title}, bands: {self.cutting}"
        return self.kind.title

    @property
    def rate(self) -> Rate:
        """The link as it is emulated."""
        return Rate(round(self.gbit * GIGABIT / (self.scale * self.slow)))

    @property
    def profile(self) -> Profile:
        """The network as it is emulated: small tensors, times of `samples_per_s` in slow motion."""
        return _emulated(self.model, self.scale, self.slow * PAPER_BATCH / self.samples_per_s)

    @property
    def emulated_slice_numel(self) -> int | None:
        """Elements of a slice as it is emulated; of a tensor that KVStore splits. None for DDP."""
        if not self.slice_numel:
            return None
        small = max(1, self.slice_numel // self.scale)
        return small if self.kind.cut == "kvstore" else max(self.least_slice, small)

    @property
    def emulated_bucket_mib(self) -> float | None:
        """DDP's buckets as they are emulated; None for all others."""
        return self.bucket_mib / self.scale if self.bucket_mib else None

    @property
    def bound_s(self) -> float:
        """Least seconds of an iteration, as emulated: computing or communication."""
        profile = self.profile
        link = communication_s(profile.payload_bytes, self.nodes, self.rate.bits_per_second)
        return max(profile.compute_s, link)

    @property
    def communication_share(self) -> float:
        """Communication over computing, without any overlap."""
        profile = self.profile
        link = communication_s(profile.payload_bytes, self.nodes, self.rate.bits_per_second)
        return link / profile.compute_s

    def throughput(self, iteration_s: float) -> float:
        """Samples a second and machine, in the paper's own time."""
        return PAPER_BATCH * self.slow / iteration_s


class Use(msgspec.Struct, frozen=True):
    """Node 0's outbound link while iterations were steady, in the paper's Gbit/s.

    `bands` is the mean of each of the agent's bands, most urgent first, then unmarked bytes
    (empty without agents); `bins` the rate in each `bin_s`, the last few seconds' only.
    """

    mean_gbit: float
    idle: float
    bands: list[float]
    bin_s: float
    bins: list[float]


class Measurement(msgspec.Struct, frozen=True):
    """One repeat of a point; `times_s` its steady iterations, as emulated, not slowed back.

    `iteration_s` is their median (over ranks, the mean of medians); `cpu_s` processor seconds an
    iteration and node; `megabytes` what a node's device sent an iteration.
    """

    point: Point
    repeat: int
    iteration_s: float
    times_s: list[float]
    cpu_s: float
    megabytes: float
    use: Use

    @property
    def throughput(self) -> float:
        """Samples a second and machine, in the paper's own time."""
        return self.point.throughput(self.iteration_s)


class StoreError(RuntimeError):
    """The file of results cannot be used; the message says why, and what to do."""


Kept = TypeVar("Kept", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class Store(Generic[Kept]):
    """Results in a file, one a line; an interrupted run's last line may be cut off."""

    path: Path
    kind: type[Kept]

    def read(self) -> list[Kept]:
        """All of them, in order. StoreError for a file of something else."""
        if not self.path.exists():
            return []
        lines = self.path.read_bytes().split(b"\n")
        try:
            return [msgspec.json.decode(line, type=self.kind) for line in lines[:-1] if line]
        except msgspec.DecodeError as error:
            raise StoreError(
                f"{self.path} holds something other than this version's results ({error}): "
                "choose another --out, or remove it"
            ) from error

    def add(self, one: Kept) -> None:
        """Keep one more; it is on the disk when this returns."""
        self._mend()
        with self.path.open("ab") as file:
            file.write(msgspec.json.encode(one) + b"\n")

    def _mend(self) -> None:
        """Drop a line that was cut off."""
        if self.path.exists() and (data := self.path.read_bytes()) and not data.endswith(b"\n"):
            self.path.write_bytes(data[: data.rfind(b"\n") + 1])


def missing(points: Iterable[Point], repeats: int, there: Iterable[Measurement]) -> list[Point]:
    """Every point as often as it has yet to be measured, so that each gets `repeats`."""
    have: dict[Point, int] = {}
    for one in there:
        have[one.point] = have.get(one.point, 0) + 1
    wanted = dict.fromkeys(points)
    return [point for point in wanted for _ in range(repeats - have.get(point, 0))]
