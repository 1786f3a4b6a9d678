"""Published networks as profiles, and made smaller to be emulated. Pure, no torch."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from experiments.architectures import Architecture, resnet50, resnet50_v1, vgg19
from experiments.inception import inception_v3
from experiments.sockeye import sockeye
from p3.profile import LayerProfile, Profile

ITEMSIZE = 4
PAPER_BATCH = 32
"""Samples an iteration on each machine (the artifact's default)."""
PAPER_SAMPLES_PER_S = {
    "resnet50_v1": 101.9,
    "vgg19": 55.1,
    "inception_v3": 70.5,
    "sockeye": 167.9,
}
"""One machine's throughput where its link is no limit: the highest of P3 in figure 7."""


def profile(architecture: Architecture, samples: int, compute_s: float, source: str) -> Profile:
    """The network at `samples` an iteration of `compute_s` seconds.

    A third of the time is the forward pass, the rest backward, split by each layer's operations.
    """
    forward_s = [compute_s / 3 * layer.flops / architecture.flops for layer in architecture.layers]
    return Profile(
        architecture.name,
        source,
        samples,
        ITEMSIZE,
        tuple(
            LayerProfile(layer.name, tuple(map(prod, layer.shapes)), seconds, 2 * seconds)
            for layer, seconds in zip(architecture.layers, forward_s, strict=True)
        ),
    )


def paper_profiles() -> dict[str, Profile]:
    """The four models of the paper by name, computing as fast as on its machines."""
    architectures = (resnet50_v1(), vgg19(), inception_v3(), sockeye())
    return {
        architecture.name: profile(
            architecture,
            PAPER_BATCH,
            PAPER_BATCH / PAPER_SAMPLES_PER_S[architecture.name],
            "published layout; time from figure 7 of arXiv 1905.03960, split by operations",
        )
        for architecture in architectures
    }


@dataclass(frozen=True, slots=True)
class Emulation:
    """How a network is emulated: `profile` has its times, and tensors `shrink` times smaller."""

    profile: Profile
    shrink: int


def emulation(whole: Profile, shrink: int) -> Emulation:
    """`whole` with tensors `shrink` times smaller; on links as much slower every ratio stays."""
    return Emulation(whole.shrunk(shrink), shrink)


def emulations() -> dict[str, Emulation]:
    """The networks of the benches by name, as docs/performance.md has measured them."""
    return {
        name: emulation(profile(network, PAPER_BATCH, compute_s, "published layout"), shrink)
        for name, network, shrink, compute_s in (
            ("vgg19", vgg19(), 20, 0.5),
            ("resnet50", resnet50(), 10, 0.3),
        )
    }
