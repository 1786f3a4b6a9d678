"""Would P3 help this model on this network, by how much, and what binds? Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from p3.profile import Profile
from p3.simulate import Prediction, predict, with_best_buckets, with_best_slices
from p3.simulation.network import Network
from p3.systems import SYSTEMS

HELPS = 1.05
"""Gains below are within what a measurement tells apart."""
FASTER = 1.1
"""How much more of a resource is tried, to see whether it binds."""


@dataclass(frozen=True, slots=True)
class Relief:
    """What an iteration gains, as a ratio, from more of something."""

    what: str
    gain: float


@dataclass(frozen=True, slots=True)
class Advice:
    """Predictions that the advice rests on.

    `ddp` with its default buckets and `best_ddp` with its best; `p3` is the better of P3's engines
    on nodes with agents, `without_agents` the same without. `reliefs`: what would make P3 faster.
    """

    profile: Profile
    network: Network
    ddp: Prediction
    best_ddp: Prediction
    p3: Prediction
    without_agents: Prediction
    reliefs: tuple[Relief, ...]

    @property
    def gain(self) -> float:
        """DDP's time over P3's."""
        return self.ddp.iteration_s / self.p3.iteration_s

    @property
    def most(self) -> float:
        """DDP's time over the bound: what no synchronous system exceeds."""
        return self.ddp.iteration_s / self.p3.bound_s


def advise(profile: Profile, network: Network) -> Advice:
    """Simulate what there is to choose from."""
    engines = [predict(profile, network, SYSTEMS["p3"])]
    engines.append(with_best_slices(profile, network, SYSTEMS["p3-groups"]))
    best = min(engines, key=lambda one: one.iteration_s)
    ddp = SYSTEMS["ddp"]
    return Advice(
        profile,
        network,
        predict(profile, network, ddp),
        with_best_buckets(profile, network, ddp),
        best,
        predict(profile, network, replace(best.system, agents=False)),
        tuple(_reliefs(profile, network, best)),
    )


def _reliefs(profile: Profile, network: Network, told: Prediction) -> Iterator[Relief]:
    """Each resource a little larger, all else as it is."""
    faster = replace(network, bits_per_second=FASTER * network.bits_per_second)
    trials = (
        ("links 10 % faster", profile, faster, told.system),
        ("devices 10 % faster", profile.slowed(1 / FASTER), network, told.system),
        (
            "messages that cost no time",
            profile,
            replace(network, latency_s=0.0),
            replace(told.system, message_s=0.0),
        ),
        ("deep switch ports", profile, replace(network, port_buffer=2**40), told.system),
        ("racks without oversubscription", profile, replace(network, rack=0), told.system),
        ("no slow node", profile, replace(network, straggler=1.0), told.system),
    )
    for what, model, links, system in trials:
        if (model, links, system) != (profile, network, told.system):
            relieved = predict(model, links, system).iteration_s
            yield Relief(what, told.iteration_s / relieved)


def text(advice: Advice) -> str:
    """The advice in plain words, a table of iteration times in the middle."""
    return "\n".join((*_setting(advice), "", *_table(advice), "", *_verdict(advice)))


def _setting(advice: Advice) -> Iterator[str]:
    profile, network = advice.profile, advice.network
    tensors = sum(len(layer.numels) for layer in profile.layers)
    yield (
        f"{profile.name}: {profile.payload_bytes / 1e6:.4g} MB of gradients in {tensors} tensors; "
        f"{profile.samples} samples an iteration on each of {network.nodes} nodes."
    )
    computing = network.straggler * profile.compute_s
    sending = network.communication_s(profile.payload_bytes)
    yield (
        f"Computing takes {computing:.4g} s an iteration, and the gradients {sending:.4g} s on the "
        f"slowest link: no synchronous system is below {max(computing, sending):.4g} s."
    )


def _table(advice: Advice) -> Iterator[str]:
    best = advice.best_ddp
    mebibytes = best.system.bucket_bytes >> 20
    rows = (
        ("PyTorch DDP", advice.ddp),
        (f"DDP, buckets of {mebibytes} MiB, its best", best),
        (f"{advice.p3.system.title}, no agents", advice.without_agents),
        (f"{advice.p3.system.title}, p3-agent on every node", advice.p3),
    )
    width = max(len(title) for title, _ in rows)
    samples = advice.profile.samples * advice.network.nodes
    yield f"{'system':{width}}  s an iteration  samples/s  of the bound  link busy"
    for title, told in rows:
        yield (
            f"{title:{width}}  {told.iteration_s:14.4g}  {samples / told.iteration_s:9.4g}  "
            f"{told.share_of_bound:12.0%}  {told.busy:9.0%}"
        )


def _verdict(advice: Advice) -> Iterator[str]:
    gain, over_best = advice.gain, advice.best_ddp.iteration_s / advice.p3.iteration_s
    if gain >= HELPS:
        yield (
            f"P3 would help: {gain:.2f} times as fast as DDP, {over_best:.2f} times as fast as "
            f"DDP with its best buckets. More than {advice.most:.2f} times is not possible."
        )
        agents = advice.without_agents.iteration_s / advice.p3.iteration_s
        yield f"Of that, the kernel's bands bring {agents:.2f}x: run p3-agent on every node."
        engine = "groups" if advice.p3.system.collective == "ring" else "ps"
        yield f'Use engine="{engine}", slice_numel={advice.p3.system.slice_numel}.'
    elif advice.most < HELPS:
        yield (
            f"P3 would not help ({gain:.2f} times DDP's speed): DDP is within "
            f"{advice.most - 1:.0%} of what is possible, so there is nothing to gain."
        )
    else:
        yield (
            f"P3 would not help as things are: {gain:.2f} times DDP's speed, where "
            f"{advice.most:.2f} times is possible."
        )
    yield _binding(advice)


def _binding(advice: Advice) -> str:
    """What more of which would make P3 faster."""
    found = sorted(advice.reliefs, key=lambda relief: -relief.gain)
    telling = [relief for relief in found if relief.gain >= 1.01]
    if not telling:
        return "Nothing tried alone makes P3 faster: computing and sending bind together."
    listed = ", ".join(f"{relief.what}: {relief.gain:.2f}x" for relief in telling)
    return f"What binds P3, by what relief would bring: {listed}."
