"""The model behind `p3 predict`, against what was measured: here, and in the paper."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

import pytest

from experiments.emulation import emulations, paper_profiles
from experiments.paper import FIGURE_7
from p3.simulate import predict
from p3.simulation.network import Network
from p3.systems import BUCKET_BYTES, SYSTEMS, with_buckets

EMULATED = {
    ("vgg19", 750): {"ddp": 0.672, "p3-groups-no-agents": 0.543, "p3-groups": 0.514, "p3": 0.526},
    ("vgg19", 500): {"ddp": 0.924, "p3-groups-no-agents": 0.753, "p3-groups": 0.739, "p3": 0.756},
    ("vgg19", 350): {"ddp": 1.225, "p3-groups-no-agents": 1.048, "p3-groups": 1.045, "p3": 1.050},
    ("resnet50", 400): {
        "ddp": 0.447,
        "p3-groups-no-agents": 0.425,
        "p3-groups": 0.341,
        "p3": 0.341,
    },
    ("resnet50", 300): {
        "ddp": 0.554,
        "p3-groups-no-agents": 0.528,
        "p3-groups": 0.433,
        "p3": 0.436,
    },
}
"""Seconds an iteration that bench_emulated found, by network and Mbit/s."""
SOFTWARE_S = 1e-3
"""What a message takes on the test cluster, whose nodes share two cores."""


def emulated_errors() -> Iterator[float]:
    for (name, megabits), measured in EMULATED.items():
        emulation = emulations()[name]
        network = Network(4, megabits * 1e6, latency_s=SOFTWARE_S)
        for key, seconds in measured.items():
            system = SYSTEMS[key]
            if system.cut == "buckets":
                system = with_buckets(system, BUCKET_BYTES // emulation.shrink)
            yield abs(predict(emulation.profile, network, system).iteration_s / seconds - 1)


def test_iterations_that_were_measured_here() -> None:
    errors = list(emulated_errors())
    assert statistics.median(errors) < 0.04
    assert max(errors) < 0.1


@pytest.mark.parametrize(
    ("name", "limit"), [("resnet50_v1", 0.04), ("inception_v3", 0.05), ("vgg19", 0.07)]
)
def test_the_papers_machines(name: str, limit: float) -> None:
    """Its hosts' own costs with large tensors (`baseline`) are not in the model."""
    profile = paper_profiles()[name]
    errors = []
    for point in FIGURE_7[name]:
        # Its switch is InfiniBand's, which does not drop.
        network = Network(4, point.gbit * 1e9, port_buffer=2**30)
        for key, measured in (("slicing", point.slicing), ("p3-static", point.p3)):
            predicted = profile.samples / predict(profile, network, SYSTEMS[key]).iteration_s
            errors.append(abs(predicted / measured - 1))
    assert statistics.median(errors) < limit
    assert max(errors) < 0.12
