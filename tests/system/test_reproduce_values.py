"""What scripts/reproduce measures, in which order, and what it makes of it; nothing is measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from experiments.reproduce import cli, paper, plans
from experiments.reproduce.claims import band_claims, claims
from experiments.reproduce.measure import turns
from experiments.reproduce.pictures import as_csv, pictures
from experiments.reproduce.points import (
    USUAL_CUTTING,
    Measurement,
    Point,
    Store,
    StoreError,
    Use,
)
from experiments.reproduce.sampling import Sample, Series
from experiments.reproduce.summary import best_buckets, summarize
from experiments.systems import SHALLOW_PORT
from p3.simulation.pieces import schedule_of
from p3.systems import SYSTEMS
from p3_shaper.rates import Rate

PAPERS = ("fig7", "fig8", "fig10", "fig12")
EVERYTHING = [p for name in PAPERS for p in plans.FIGURES[name](plans.EVERYTHING, quick=False)]
QUICK = [point for plan in plans.FIGURES.values() for point in plan(plans.QUICK, quick=True)]
ONE = replace(plans.EVERYTHING, models=("resnet50_v1",), buffers=(SHALLOW_PORT,))
BEST = plans.figure_7(ONE, quick=True)


def measurement(point: Point, seconds: float, repeat: int = 0) -> Measurement:
    use = Use(1.0, 0.1, [0.5, 0.5], 0.01, [1.0, 2.0])
    return Measurement(point, repeat, seconds, [seconds], 0.1, 9.0, use)


@pytest.mark.parametrize("points", [EVERYTHING, QUICK], ids=["all", "quick"])
def test_ratios_are_the_papers(points: list[Point]) -> None:
    for point in points:
        whole = replace_scale(point)
        assert point.communication_share == pytest.approx(whole.communication_share, rel=1e-3)
        assert point.profile.compute_s == pytest.approx(
            point.slow * point.profile.samples / point.samples_per_s
        )
        if point.slice_numel:
            assert point.emulated_slice_numel is not None
            assert point.emulated_slice_numel >= point.least_slice
        at_bound = point.throughput(point.bound_s)
        assert at_bound == pytest.approx(whole.throughput(whole.bound_s), rel=1e-3)


def replace_scale(point: Point) -> Point:
    return msgspec.structs.replace(point, scale=1, slow=1.0)


def test_every_system_and_the_papers_settings_are_there() -> None:
    at = [point for point in EVERYTHING if point.nodes == paper.NODES]
    for model in paper.MODELS:
        for rate in paper.rates(model):
            systems = {p.system for p in at if p.model == model and p.gbit == rate}
            assert systems >= SYSTEMS.keys()
    assert {point.port_buffer for point in EVERYTHING} == {256_000, 4_000_000}
    assert {point.nodes for point in EVERYTHING} == {1, 2, 4, 8, 16}
    assert set(QUICK) - set(EVERYTHING)  # fewer iterations


def test_points_of_a_link_take_turns_and_share_agents() -> None:
    blocks = turns(BEST, 3, [])
    every = [turn for block in blocks for turn in block]
    assert len(every) == len(set(every)) == 3 * len(BEST)
    with_agents = [{turn.point.kind.uses_bands for turn in block} for block in blocks]
    assert with_agents == [{True}, {False}, {False}, {True}, {True}, {False}]
    assert [block[0].repeat for block in blocks] == [0, 0, 1, 1, 2, 2]
    bandless = [[turn.point for turn in blocks[place]] for place in (1, 2, 5)]
    assert all(set(points) == set(bandless[0]) for points in bandless)
    assert len(set(map(tuple, bandless))) == 3


def test_what_is_there_is_not_measured_again(tmp_path: Path) -> None:
    store = Store(tmp_path / "measurements.jsonl", Measurement)
    assert store.read() == []
    whole = [turn for block in turns(BEST, 2, []) for turn in block]
    for turn in whole[:5]:
        store.add(measurement(turn.point, 0.5, turn.repeat))
    with store.path.open("ab") as file:
        file.write(b'{"point":')  # a run that was killed
    assert len(store.read()) == 5
    rest = [turn for block in turns(BEST, 2, store.read()) for turn in block]
    assert sorted(map(str, rest)) == sorted(map(str, whole[5:]))
    store.add(measurement(whole[5].point, 0.5))
    assert len(store.read()) == 6
    store.path.write_text("{}\n")
    with pytest.raises(StoreError, match="choose another --out"):
        store.read()


def test_medians_spreads_and_claims() -> None:
    seconds = {"baseline": 0.5, "slicing": 0.45, "ddp": 0.44, "p3": 0.35}
    raw = [
        measurement(point, seconds[point.system] * factor, repeat)
        for point in BEST
        if point.system in seconds
        for repeat, factor in enumerate((1.0, 1.25, 0.8))
    ]
    summary = summarize(raw)
    rows = summary.of(BEST)
    p3 = next(row for row in rows.values() if row.system == "p3")
    assert p3.throughput == pytest.approx(32 * ONE.slow / 0.35)
    assert p3.spread == pytest.approx(1.25 - 0.8)
    assert len(p3.repeats) == 3
    assert "sizes / 10" in p3.emulated
    found = {claim.text: claim for claim in claims(rows)}
    gain = found["ResNet-50 at 4 Gbit/s: p3 over baseline"]
    assert gain.holds
    assert gain.found == pytest.approx(0.5 / 0.35)
    ddp = [row for row in best_buckets(rows).values() if row.system == "ddp"]
    assert plans.DEFAULT_BUCKET_MIB in {row.bucket_mib for row in ddp}
    assert len(ddp) < sum(row.system == "ddp" for row in rows.values())
    (picture,) = pictures("fig7", rows, raw)
    assert len(as_csv(picture.rows).splitlines()) == len(picture.rows) + 1
    assert "1/10" in picture.title


def test_bands_are_cut_in_every_way_and_compared() -> None:
    points = plans.bands(replace(plans.EVERYTHING, models=("sockeye",)), quick=False)
    assert {point.system for point in points} == {"p3", "p3-groups"}
    groups = [point for point in points if point.system == "p3-groups"]
    # No two come to the same bands, and the usual ones keep their name.
    assert len({schedule_of(p.profile, p.kind, 7).cuts for p in groups}) == len(groups)
    assert {"one-band", USUAL_CUTTING} <= {point.cutting for point in groups}
    raw = [measurement(p, 0.4 if p.cutting == USUAL_CUTTING else 0.5) for p in points]
    found = band_claims(summarize(raw).of(points))
    assert [claim.found for claim in found] == pytest.approx([1.25, 1.25])
    (picture,) = pictures("bands", summarize(raw).of(points), raw)
    assert "P3, groups, bands: one-band" in {row.title for row in picture.rows}


def test_a_links_use() -> None:
    # 1 Mbit/s for 10 ms, nothing for 30 ms; of 2 Mbit/s, which stand for 20 Gbit/s.
    totals = [0, 1250, 1250, 1250, 1250]
    samples = [Sample(0.01 * place, total, (total, 0)) for place, total in enumerate(totals)]
    use = Series(0.01, samples).use(Rate(2_000_000), 10_000, 0.0, 1.0)
    assert use.mean_gbit == pytest.approx(2.5)
    assert use.idle == pytest.approx(0.75)
    assert use.bands == pytest.approx([2.5, 0])
    assert use.bins == pytest.approx([10, 0, 0, 0])


@pytest.mark.parametrize(
    "arguments", [("fig7", "--repeat", "0"), ("fig7", "--iterations", "2"), ("fig9",)]
)
def test_what_makes_no_sense_is_refused(arguments: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.parse(arguments)
