"""Which points each figure is made of. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import msgspec

from experiments.emulation import PAPER_SAMPLES_PER_S
from experiments.reproduce import paper
from experiments.reproduce.points import OPTIMISED, Point
from experiments.systems import DEEP_PORT, SHALLOW_PORT
from p3.best_cuts import with_best_cuts
from p3.cuts import CUTTINGS
from p3.simulate import BANDS
from p3.simulation.network import Network
from p3.simulation.pieces import schedule_of
from p3.systems import SYSTEMS

DEFAULT_BUCKET_MIB = 25.0
SCALES = {"vgg19": 20}
"""Where nothing else is asked for; SCALE for all others. Larger for more bytes: 4 nodes' bytes are
copied by few processors."""
SCALE = 10
LEAST_SLICE = {"server": 50_000, "ring": 400_000}
"""Elements: the engines' own sizes, the best for a processor at any scale."""
SLOW = 2.0
"""Where nothing else is asked for: in the paper's own time four nodes' messages fill two cores."""
SAMPLE_S = 0.1
MESSAGE_S = 1e-3
"""What a message takes where nodes share two cores, for the model that optimises bands."""
FINE_SAMPLE_S = 0.01
"""Figure 8's, as the paper has it."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What the user asked for, or `--quick` chose. `models` and `rates` are None for a figure's
    own; `buckets` are the sizes in which DDP's best is looked for, in MiB."""

    models: tuple[str, ...] | None
    rates: tuple[float, ...] | None
    scale: int | None
    slow: float
    least_slice: int | None
    systems: tuple[str, ...]
    buckets: tuple[float, ...]
    buffers: tuple[int, ...]
    nodes: tuple[int, ...]
    slices: tuple[int, ...]
    iterations: int
    repeats: int


EVERYTHING = Choice(
    models=None,
    rates=None,
    scale=None,
    slow=SLOW,
    least_slice=None,
    systems=tuple(SYSTEMS),
    buckets=(5.0, 10.0, DEFAULT_BUCKET_MIB, 50.0),
    buffers=(SHALLOW_PORT, DEEP_PORT),
    nodes=(1, 2, 4, 8, 16),
    slices=(5_000, 10_000, 50_000, 100_000, 500_000, 1_000_000),
    iterations=13,
    repeats=3,
)
QUICK = Choice(
    models=None,
    rates=None,
    scale=None,
    slow=SLOW,
    least_slice=None,
    systems=("ddp", "baseline", "slicing", "p3", "p3-groups"),
    buckets=(DEFAULT_BUCKET_MIB,),
    buffers=(SHALLOW_PORT,),
    nodes=(8,),
    slices=(10_000, 1_000_000),
    iterations=5,
    repeats=3,
)


def figure_7(choice: Choice, *, quick: bool) -> list[Point]:
    """Throughput against bandwidth, every system."""
    found: list[Point] = []
    for buffer in choice.buffers:
        for model in choice.models or paper.MODELS:
            own = (paper.BEST_RATE[model],) if quick else paper.rates(model)
            for rate in choice.rates or own:
                found += _all_systems(choice, Where(model, rate, buffer))
    if quick and choice.models is None:
        # One model's worth of the other port buffer.
        where = Where("resnet50_v1", paper.BEST_RATE["resnet50_v1"], DEEP_PORT)
        found += _all_systems(replace(choice, systems=("baseline", "p3", "p3-groups")), where)
    return found


def figure_8(choice: Choice, *, quick: bool) -> list[Point]:
    """The baseline's and P3's use of a link."""
    buffers = choice.buffers[:1] if quick else choice.buffers
    models = choice.models or (("resnet50_v1",) if quick else paper.MODELS_8)
    return [
        msgspec.structs.replace(point, sample_s=FINE_SAMPLE_S)
        for buffer in buffers
        for model in models
        if model in paper.MODELS_8
        for system in ("baseline", "p3")
        for point in _points(choice, Where(model, paper.figure_8(model)[0], buffer), system)
    ]


def figure_10(choice: Choice, *, quick: bool) -> list[Point]:
    """Machines from 1 to 16, at 10 Gbit/s; those of the figure compute at another speed."""
    models = choice.models or (("resnet50_v1",) if quick else paper.MODELS_10)
    chosen = ("baseline", "p3") if quick else ("baseline", "p3", "p3-groups", "ddp")
    return [
        point
        for buffer in choice.buffers
        for model in models
        if model in paper.MODELS_10
        for nodes in choice.nodes
        for system in chosen
        for point in _points(choice, _scaled_out(model, buffer, nodes), system)
    ]


def figure_12(choice: Choice, *, quick: bool) -> list[Point]:
    """P3 with slices of many sizes, each as small as the scale makes it."""
    models = choice.models or (("resnet50_v1",) if quick else paper.MODELS_12)
    return [
        _point(choice, Where(model, paper.RATES_12[model], buffer), "p3", size, least=1)
        for buffer in choice.buffers
        for model in models
        if model in paper.MODELS_12
        for size in choice.slices
    ]


def bands(choice: Choice, *, quick: bool) -> list[Point]:
    """P3 with bands cut in every way there is, where figure 7 shows the most gain."""
    models = choice.models or (("resnet50_v1",) if quick else paper.MODELS)
    chosen = ("p3-groups",) if quick else ("p3", "p3-groups")
    found: list[Point] = []
    for model in models:
        for rate in choice.rates or (paper.BEST_RATE[model],):
            for system in chosen:
                (point,) = _points(choice, Where(model, rate, SHALLOW_PORT), system)
                found += _cut_in_all_ways(point)
    return found


def _cut_in_all_ways(point: Point) -> Iterator[Point]:
    profile, system = point.profile, point.kind
    known = {}
    for cutting in CUTTINGS:
        one = msgspec.structs.replace(point, cutting=cutting)
        known[schedule_of(profile, one.kind, BANDS).cuts] = one
    network = Network(point.nodes, point.rate.bits_per_second, MESSAGE_S, point.port_buffer)
    cuts = schedule_of(profile, with_best_cuts(profile, network, system).system, BANDS).cuts
    # Ways that come to the same bands are measured once, the usual one by its own name.
    known.setdefault(cuts, msgspec.structs.replace(point, cutting=OPTIMISED, cuts=cuts))
    yield from known.values()


Plan = Callable[..., list[Point]]
FIGURES: Mapping[str, Plan] = {
    "fig7": figure_7,
    "fig8": figure_8,
    "fig10": figure_10,
    "fig12": figure_12,
    "bands": bands,
}
QUICK_FIGURES = ("fig7", "fig8", "fig10", "fig12")
"""What `all --quick` has time for."""


@dataclass(frozen=True, slots=True)
class Where:
    """A model on links; `samples_per_s` of one machine without a network."""

    model: str
    gbit: float
    port_buffer: int
    nodes: int = paper.NODES
    samples_per_s: float | None = None


def _scaled_out(model: str, buffer: int, nodes: int) -> Where:
    alone = paper.figure_10(model)["p3"][1]
    return Where(model, paper.RATE_10, buffer, nodes, alone)


def _all_systems(choice: Choice, where: Where) -> Iterator[Point]:
    for system in choice.systems:
        yield from _points(choice, where, system)


def _points(choice: Choice, where: Where, system: str) -> Iterator[Point]:
    kind = SYSTEMS[system]
    if kind.cut == "buckets":
        for bucket in choice.buckets:
            yield _point(choice, where, system, 0, bucket_mib=bucket)
    else:
        whole = 1_000_000 if kind.cut == "kvstore" else kind.slice_numel
        yield _point(choice, where, system, whole)


def _point(
    choice: Choice,
    where: Where,
    system: str,
    slice_numel: int,
    *,
    bucket_mib: float = 0.0,
    least: int | None = None,
) -> Point:
    own = LEAST_SLICE[SYSTEMS[system].collective]
    if least is None:
        least = own if choice.least_slice is None else choice.least_slice
    return Point(
        model=where.model,
        system=system,
        nodes=where.nodes,
        gbit=where.gbit,
        slice_numel=slice_numel,
        bucket_mib=bucket_mib,
        port_buffer=where.port_buffer,
        samples_per_s=where.samples_per_s or PAPER_SAMPLES_PER_S[where.model],
        scale=choice.scale or SCALES.get(where.model, SCALE),
        # More than four nodes' messages are more than few processors can move in time.
        slow=choice.slow * max(1, where.nodes // paper.NODES),
        least_slice=least if slice_numel and SYSTEMS[system].cut == "slices" else 0,
        iterations=choice.iterations,
        sample_s=SAMPLE_S,
    )
