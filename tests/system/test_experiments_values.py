"""What the experiments compute without running anything: bounds, networks, medians, tables."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.architectures import Architecture, resnet50, resnet50_v1, vgg19
from experiments.comparison import Setting as DemoSetting
from experiments.comparison import compare, text
from experiments.emulated_report import Collected
from experiments.emulated_report import text as emulated_text
from experiments.emulation import emulations, paper_profiles
from experiments.inception import inception_v3
from experiments.messages import (
    Event,
    Failed,
    Finished,
    Held,
    Iterated,
    Measured,
    Started,
    Waited,
    heard,
)
from experiments.outcome import Outcome, largest_difference
from experiments.report import table
from experiments.rounds import interleaved, spread
from experiments.setting import parse_setting
from experiments.sockeye import sockeye
from experiments.systems import DEMO
from experiments.training_costs import costs
from experiments.training_costs import text as costs_text
from experiments.transports import summary
from p3.bounds import HEADER_OVERHEAD, communication_s, iteration_bound_s
from p3_shaper.rates import RateError, parse_rate


def a_rank(
    rank: int = 0, pace: float = 0.5, iterations: int = 12, *, digest: str = "same"
) -> Finished:
    return Finished(
        rank=rank,
        starts=[pace * iteration for iteration in range(iterations)],
        ended=pace * iterations,
        losses=[1.0 / (iteration + 1 + rank) for iteration in range(iterations)],
        compute_s=0.1,
        accuracy=0.75,
        digest=digest,
        parameters=1_000_000,
        images=64,
        sent_bytes=10_000_000 * (rank + 1),
        payload_bytes=0,
        cpu_s=1.2,
    )


@pytest.mark.parametrize(
    ("network", "parameters", "tensors", "giga_multiplications"),
    [
        (vgg19(), 143_667_240, 38, 19.63),
        (resnet50(), 25_557_032, 161, 4.10),
        (resnet50_v1(), 25_575_912, 193, 3.87),
        (inception_v3(), 23_834_568, 284, 5.72),
        (sockeye(), 27_740_701, 37, 0.375),
    ],
    ids=["vgg19", "resnet50", "resnet50_v1", "inception_v3", "sockeye"],
)
def test_networks_are_the_published_ones(
    network: Architecture, parameters: int, tensors: int, giga_multiplications: float
) -> None:
    assert network.numel == parameters
    assert sum(len(layer.shapes) for layer in network.layers) == tensors
    assert network.flops / 2e9 == pytest.approx(giga_multiplications, abs=0.005)


def test_vgg19_has_most_parameters_in_one_layer() -> None:
    largest = max(vgg19().layers, key=lambda layer: layer.numel)
    assert largest.name == "fc6"
    assert largest.numel / vgg19().numel == pytest.approx(0.715, abs=0.001)


@pytest.mark.parametrize("name", emulations())
def test_emulated_layers_take_the_whole_compute_time_between_them(name: str) -> None:
    emulation = emulations()[name]
    whole, compute_s = {"vgg19": (vgg19(), 0.5), "resnet50": (resnet50(), 0.3)}[name]
    assert emulation.profile.compute_s == pytest.approx(compute_s)
    assert 3 * sum(layer.forward_s for layer in emulation.profile.layers) == pytest.approx(
        compute_s
    )
    assert emulation.profile.numel == pytest.approx(whole.numel / emulation.shrink, rel=1e-4)


def test_the_papers_models_compute_as_fast_as_its_machines() -> None:
    models = paper_profiles()
    assert list(models) == ["resnet50_v1", "vgg19", "inception_v3", "sockeye"]
    for name, per_second in (("resnet50_v1", 101.9), ("sockeye", 167.9)):
        assert models[name].samples / models[name].compute_s == pytest.approx(per_second)


def test_communication_of_two_nodes_is_one_copy_each_way() -> None:
    assert communication_s(1_000_000, 2, 8_000_000) == pytest.approx(HEADER_OVERHEAD)


def test_a_single_node_has_nothing_to_communicate() -> None:
    assert communication_s(1_000_000, 1, 8_000_000) == 0


@pytest.mark.parametrize(("nodes", "bits_per_second"), [(0, 1000), (2, 0)])
def test_communication_refuses_what_is_no_cluster(nodes: int, bits_per_second: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        communication_s(1, nodes, bits_per_second)


@pytest.mark.parametrize(
    ("setting", "bound_s"),
    [
        ("vgg19@750mbit", 0.50),
        ("vgg19@500mbit", 0.72),
        ("vgg19@350mbit", 1.03),
        ("resnet50@400mbit", 0.32),
        ("resnet50@300mbit", 0.43),
    ],
)
def test_bounds_of_the_emulated_settings(setting: str, bound_s: float) -> None:
    assert parse_setting(setting).bound_s(nodes=4) == pytest.approx(bound_s, abs=0.005)


@pytest.mark.parametrize("text", ["vgg19", "alexnet@1gbit", "@1gbit", ""])
def test_a_setting_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write NETWORK@RATE"):
        parse_setting(text)


def test_a_setting_needs_a_unit() -> None:
    with pytest.raises(RateError):
        parse_setting("vgg19@750")


def test_the_longer_of_two_is_the_bound() -> None:
    assert iteration_bound_s(0.5, 0.3) == 0.5
    assert iteration_bound_s(0.3, 0.5) == 0.5


def test_an_outcome_is_rank_0s_pace_after_the_warm_up() -> None:
    starts = [9.0 * min(i, 4) + 0.5 * i for i in range(12)]
    first = msgspec.structs.replace(a_rank(), starts=starts, ended=starts[-1] + 7)
    outcome = Outcome((first, a_rank(1, pace=3.0)))
    assert outcome.iteration_s == pytest.approx(0.5)
    assert outcome.images_per_s == pytest.approx(2 * 64 / 0.5)


def test_an_outcomes_loss_and_bytes_are_the_nodes_mean() -> None:
    outcome = Outcome((a_rank(0), a_rank(1)))
    assert outcome.losses[0] == pytest.approx((1 + 1 / 2) / 2)
    assert outcome.megabytes_sent == pytest.approx(15)


def test_an_outcome_has_a_digest_only_where_ranks_agree() -> None:
    assert Outcome((a_rank(0), a_rank(1))).digest == "same"
    assert Outcome((a_rank(0), a_rank(1, digest="other"))).digest is None


def test_an_outcome_needs_a_rank() -> None:
    with pytest.raises(ValueError, match="without a rank"):
        Outcome(())


def test_the_largest_difference_is_relative_beyond_1() -> None:
    assert largest_difference([10.0, 0.5], [11.0, 0.6]) == pytest.approx(0.1)
    with pytest.raises(ValueError, match="argument"):
        largest_difference([1.0], [1.0, 2.0])


@given(st.lists(st.text(max_size=3), unique=True, min_size=1), st.integers(1, 6))
def test_everyone_has_a_turn_every_round(items: list[str], rounds: int) -> None:
    turns = list(interleaved(items, rounds))
    for number in range(rounds):
        assert sorted(item for when, item in turns if when == number) == sorted(items)
    assert [number for number, _ in turns] == sorted(number for number, _ in turns)


def test_each_round_begins_with_another() -> None:
    turns = list(interleaved("abc", 4))
    assert [turns[3 * number][1] for number in range(4)] == ["a", "b", "c", "a"]


def test_spread_is_a_part_of_the_median() -> None:
    assert spread([0.9, 1.0, 1.2]) == pytest.approx(0.3)


def test_a_table_lines_its_columns_up() -> None:
    assert table(("system", "s"), [("P3", "0.5"), ("a longer one", "12.5")]) == (
        "system           s\n------------  ----\nP3             0.5\na longer one  12.5"
    )
    with pytest.raises(ValueError, match="a row of 1 cells"):
        table(("system", "s"), [("P3",)])


EVENTS: list[Event] = [
    Started(1, 4711),
    Iterated(3, 0.5),
    Failed(2, "PeerLostError: rank 1 went away"),
    a_rank(),
    Measured("ps", 100, 0.1, 0.2),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_events_are_heard_as_told(event: Event, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    from experiments.messages import tell  # noqa: PLC0415 - after stdout is captured

    tell(event)
    assert heard(capsysbinary.readouterr().out.decode()) == event


@pytest.mark.parametrize("line", ["", "NCCL says hello", "{}", "[1]", '{"type":"started"}'])
def test_other_output_is_no_event(line: str) -> None:
    assert heard(line) is None


def demo_numbers_of(paces: dict[str, float], **digests: str) -> str:
    setting = DemoSetting(2, parse_rate("200mbit"), 256_000, "small")
    outcomes = {
        key: Outcome(tuple(a_rank(r, pace, digest=digests.get(key, "same")) for r in range(2)))
        for key, pace in paces.items()
    }
    return text(compare(setting, outcomes))


def test_the_demo_tells_ratios_and_agreement() -> None:
    told = demo_numbers_of({"ddp": 0.6, "p3_without_agent": 0.5, "p3": 0.4})
    assert "P3 with agents against DDP: 1.50x" in told
    assert "the kernel's bands against none: 1.25x" in told
    assert "agree with DDP's" in told
    assert "identical on all nodes; identical, bit for bit" in told
    assert all(system.title in told for system in DEMO)


def test_the_demo_tells_when_parameters_differ() -> None:
    told = demo_numbers_of({"ddp": 0.6, "p3_without_agent": 0.5, "p3": 0.4}, p3="another")
    assert "DIFFERENT, bit for bit" in told


def test_rounds_become_medians_and_ratios() -> None:
    collected = Collected(parse_setting("vgg19@750mbit"), nodes=4)
    for pace in (0.70, 0.66, 0.68):
        collected.add("ddp", Outcome((a_rank(pace=pace),)))
    for pace in (0.55, 0.53, 0.54):
        collected.add("groups", Outcome((a_rank(pace=pace),)))
    found = collected.summary()
    assert found.systems["groups"].iteration_s == pytest.approx(0.54)
    assert found.systems["groups"].over_ddp == pytest.approx(0.68 / 0.54)
    assert found.systems["groups"].share_of_bound == pytest.approx(0.5 / 0.54)
    assert found.bands_over_no_bands is None
    assert "1.26x" in emulated_text([found])


def test_transports_are_told_by_the_gigabyte() -> None:
    rounds = [Measured("ps", 10**9, seconds, 2 * seconds) for seconds in (1.0, 2.0, 4.0)]
    found = summary(rounds, nodes=2)
    assert list(found) == ["ps"]
    assert found["ps"].gigabytes_per_s == pytest.approx(0.5)
    assert found["ps"].cpu_s_per_gb == pytest.approx(2.0)


def test_costs_of_training_are_those_beyond_training_alone_and_as_shares_of_ddps() -> None:
    told: list[Event] = []
    for name, cpu_s in (("alone", 1.0), ("ddp", 2.0), ("groups", 3.0), ("ps", 2.5)):
        told.append(Measured(name, 10**9, 4.0, cpu_s))
        told.append(Held(name, 100, round(cpu_s * 100)))
        told += [Waited(name, 1e-3 * cpu_s), Waited(name, 1e-4)]
    found = costs(told, nodes=2)
    assert found["groups"].cpu_s_per_gb == pytest.approx(1.0)
    assert found["groups"].cpu_over_ddp == pytest.approx(2.0)
    assert found["ps"].memory_share == pytest.approx(2.5)
    assert found["ps"].memory_over_ddp == pytest.approx(1.25)
    assert found["ps"].longest_gil_wait_s == pytest.approx(2.5e-3)
    assert found["alone"].cpu_over_ddp is None
    assert "2.50 ms" in costs_text(found)
