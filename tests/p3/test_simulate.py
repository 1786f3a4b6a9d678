"""The model behind `p3 predict`, against what can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p3.bounds import HEADER_OVERHEAD
from p3.engine import P3Error
from p3.profile import LayerProfile, Profile, read_profile
from p3.simulate import Prediction, predict, with_best_buckets
from p3.simulation.network import Network
from p3.systems import SYSTEMS, System, with_buckets


def profile(*layers: tuple[int, float]) -> Profile:
    """Layers of (elements, forward seconds); backward takes twice as long."""
    return Profile(
        "test",
        "made up",
        32,
        4,
        tuple(
            LayerProfile(f"layer{place}", (numel,), seconds, 2 * seconds)
            for place, (numel, seconds) in enumerate(layers)
        ),
    )


def network(nodes: int = 4, *, elements_s: float = 1e6, **more: float) -> Network:
    """Links that bring `elements_s` of 4 bytes through a ring of `nodes` in a second."""
    bits = elements_s * 4 * 8 * HEADER_OVERHEAD * 2 * (nodes - 1) / nodes
    return Network(nodes, bits, latency_s=0.0, **more)  # type: ignore[arg-type]


def ideal(order: str, *, per_layer: bool = True, slice_numel: int = 10_000) -> System:
    """A ring without costs of its own."""
    return System(
        "x",
        "",
        "slices",
        "ring",
        order,  # type: ignore[arg-type]
        slice_numel,
        per_layer=per_layer,
        message_s=0.0,
    )


def test_the_papers_toy() -> None:
    """Figure 4: three layers, a second of forward and backward each, two to synchronise one."""
    toy = Profile(
        "toy", "figure 4", 1, 4, tuple(LayerProfile(f"{n}", (1_000_000,), 1, 1) for n in range(3))
    )
    links = network(elements_s=0.5e6)
    in_order_of_appearance = predict(toy, links, ideal("fifo"))
    first_layer_first = predict(toy, links, ideal("iteration"))
    assert in_order_of_appearance.wait_s == pytest.approx(4, rel=0.01)
    assert first_layer_first.wait_s == pytest.approx(2, rel=0.01)


def test_one_node_only_computes() -> None:
    alone = profile((5, 1.0), (5, 2.0))
    for system in SYSTEMS.values():
        told = predict(alone, Network(1, 1e9), system)
        assert told.iteration_s == pytest.approx(9)
        assert told.share_of_bound == pytest.approx(1)
        assert told.busy == 0


def test_what_takes_longer_decides() -> None:
    model = profile(*[(100_000, 0.01)] * 20)
    quick = predict(model, network(elements_s=1e9), SYSTEMS["p3-groups"])
    assert quick.iteration_s == pytest.approx(model.compute_s, rel=0.06)
    slow = network(elements_s=1e5)
    assert predict(model, slow, ideal("iteration")).iteration_s == pytest.approx(
        slow.bound_s(model), rel=0.03
    )


unhurried = settings(deadline=None, max_examples=30)
models = st.lists(
    st.tuples(st.integers(1, 300_000), st.floats(1e-4, 0.05)), min_size=1, max_size=8
).map(lambda layers: profile(*layers))


@unhurried
@given(models, st.integers(2, 9), st.floats(1e5, 1e8), st.sampled_from(sorted(SYSTEMS)))
def test_nothing_beats_the_bound(model: Profile, nodes: int, speed: float, name: str) -> None:
    links = network(nodes, elements_s=speed)
    told = predict(model, links, SYSTEMS[name])
    assert told.iteration_s >= 0.999 * told.bound_s
    assert told.iteration_s >= 0.999 * model.compute_s
    assert 0 <= told.busy <= 1.001


@unhurried
@given(models, st.integers(2, 9), st.floats(1e5, 1e8))
def test_order_without_costs_never_loses(model: Profile, nodes: int, speed: float) -> None:
    links = network(nodes, elements_s=speed)

    def told(order: str, *, per_layer: bool = True) -> Prediction:
        return predict(model, links, ideal(order, per_layer=per_layer))

    # A slice on its way is not taken back: what it holds up is at most two of them an iteration.
    slack = 1.01 * told("fifo", per_layer=False).iteration_s + 2e4 / speed
    assert told("iteration").iteration_s <= slack


def test_stragglers_racks_and_shallow_ports() -> None:
    model = profile(*[(200_000, 0.01)] * 10)
    base = predict(model, network(), SYSTEMS["p3"]).iteration_s
    late = predict(model, network(straggler=3.0), SYSTEMS["p3"])
    assert late.iteration_s >= 3 * model.compute_s
    racks = network(8, rack=4, oversubscription=16.0)
    assert predict(model, racks, SYSTEMS["p3"]).iteration_s > 2 * base
    # In a ring one neighbour in four crosses: a quarter of the traffic, against over half of it.
    assert racks.fabric_share("ring") > 2 * racks.fabric_share("server")
    baseline = replace(SYSTEMS["baseline"], incast_control=False)
    deep = predict(model, network(port_buffer=10_000_000), baseline).iteration_s
    assert predict(model, network(port_buffer=100_000), baseline).iteration_s > 1.2 * deep


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("nodes", 0),
        ("bits_per_second", 0.0),
        ("oversubscription", 0.5),
        ("straggler", 0.0),
        ("rack", -1),
    ],
)
def test_networks_that_cannot_be(field: str, value: float) -> None:
    given_: dict[str, float] = {"nodes": 2, "bits_per_second": 1e9, field: value}
    with pytest.raises(ValueError, match=r"at least|more than 0|or more|not negative"):
        Network(**given_)  # type: ignore[arg-type]


def test_profiles_in_files(tmp_path: Path) -> None:
    file = tmp_path / "model.json"
    wanted = profile((10, 0.5), (20, 0.25))
    wanted.write(file)
    assert read_profile(file) == wanted
    for text, words in (
        ("{", "is no profile"),
        ('{"name": 3}', "is no profile"),
        (file.read_text().replace("0.5", "-0.5"), "layer layer0: seconds"),
        (file.read_text().replace('"samples": 32', '"samples": 0'), "samples and itemsize"),
    ):
        bad = tmp_path / "bad.json"
        bad.write_text(text)
        with pytest.raises(P3Error, match=words):
            read_profile(bad)
    with pytest.raises(P3Error, match="scripts/profile"):
        read_profile(tmp_path / "none.json")


def test_agents_and_buckets_are_worth_what_they_are() -> None:
    model = profile(*[(200_000, 0.01)] * 10)
    for name in ("p3", "p3-groups"):
        alone = predict(model, network(), SYSTEMS[f"{name}-no-agents"])
        assert predict(model, network(), SYSTEMS[name]).iteration_s <= alone.iteration_s
    ddp = SYSTEMS["ddp"]
    best = with_best_buckets(model, network(), ddp)
    assert best.iteration_s <= 1.001 * predict(model, network(), ddp).iteration_s
    whole = with_buckets(ddp, 2**40)
    # One bucket overlaps with nothing.
    assert predict(model, network(), whole).iteration_s == pytest.approx(0.3 + 2.0, rel=0.01)


def test_thousands_of_nodes() -> None:
    model = profile(*[(2_000_000, 0.01)] * 10)
    many = Network(4096, 1e10, port_buffer=2**33)
    for system in SYSTEMS.values():
        assert predict(model, many, system).share_of_bound <= 1.001
    # Large tensors are split over all servers, whose links all work; messages are what it costs.
    baseline = SYSTEMS["baseline"]
    assert predict(model, many, replace(baseline, message_s=0.0)).iteration_s < 2 * 0.3
    assert predict(model, many, baseline).iteration_s > 2 * 10 * 4095 * baseline.message_s
