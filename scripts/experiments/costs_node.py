"""The program that torchrun starts on both nodes for bench_transport: what training costs.

All systems are there at once, and train the same network in turns.

python -m experiments.costs_node --megabytes 100 --rounds 5
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
import torch.distributed as dist

from experiments import node, train
from experiments.architectures import resnet50
from experiments.emulated_layers import emulated_network
from experiments.emulation import emulation, profile
from experiments.gil_probe import GilProbe, ProbingClock
from experiments.messages import Held, Measured, Waited, tell
from experiments.rounds import interleaved
from experiments.train import Trained
from experiments.training_costs import ALONE, SYSTEMS
from experiments.workloads import SEED, Workload

ITERATIONS = 3
"""In a turn, so that what one iteration leaves to the next is within it."""
DEVICE_S = 0.3
"""An iteration's device time while waits for the GIL are looked for."""


@dataclass(frozen=True, slots=True)
class Trainee:
    """One system's own copy of the network, and its device."""

    name: str
    workload: Workload
    trained: Trained
    clock: ProbingClock

    def turn(self) -> tuple[float, float]:
        """Seconds and processor seconds of some iterations, until no rank has any work left."""
        dist.barrier()
        began, cpu = time.perf_counter(), time.process_time()
        self._iterate()
        dist.barrier()
        return time.perf_counter() - began, time.process_time() - cpu

    def probe(self) -> float:
        """The longest wait for the GIL in some iterations; rank 0 looks, for others need none."""
        dist.barrier()
        probe = GilProbe()
        self.clock.probe = probe if dist.get_rank() == 0 else None
        self._iterate()
        self.clock.probe = None
        return probe.longest_s

    def _iterate(self) -> None:
        for iteration in range(ITERATIONS):
            train.step(self.workload, self.trained.model, self.trained.optimizer, iteration)
        self.trained.finish()


def make(name: str, megabytes: int) -> Trainee:
    """ResNet-50's tensors, together about `megabytes`, trained by system `name`."""
    clock = ProbingClock()
    workload = _workload(megabytes, clock)
    if name == ALONE:
        optimizer = workload.optimizer()
        trained = Trained(workload.model, optimizer, lambda: None, lambda: None, lambda: 0)
    elif name == "ddp":
        trained = train.ddp(workload)
    else:
        engine: Literal["ps", "groups"] = "ps" if name == "ps" else "groups"
        # Links without shaping have no shallow port behind them.
        trained = train.p3_trained(workload, engine, None, port_buffer=0)
    return Trainee(name, workload, trained, clock)


def _workload(megabytes: int, clock: ProbingClock) -> Workload:
    torch.manual_seed(SEED)
    whole = profile(resnet50(), 1, DEVICE_S, "published layout")
    shrink = max(1, round(whole.payload_bytes / 1e6 / megabytes))
    zero = torch.zeros(())
    return Workload(
        model=emulated_network(emulation(whole, shrink), dist.get_rank(), clock),
        batch=lambda _: (zero, zero),
        loss=lambda output, wanted: output - wanted,
        images=0,
        learning_rate=0.1,
        momentum=0.0,
    )


def held(name: str, megabytes: int) -> tuple[Trainee, Held]:
    """The system, and what memory it takes to set it up and to train a little."""
    dist.barrier()
    before = _status_bytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # proc(5): the peak, from now
    trainee = make(name, megabytes)
    trainee.turn()
    # Parameters and gradients.
    model = 2 * sum(p.nbytes for p in trainee.workload.model.parameters())
    return trainee, Held(name, model, _status_bytes("VmHWM") - before - model)


def _status_bytes(key: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name == key:
            return int(value.split()[0]) * 1024
    raise LookupError(f"/proc/self/status has no {key}")


def _tell_turn(trainee: Trainee) -> None:
    turns: list[tuple[float, float]] = [(0.0, 0.0)] * dist.get_world_size()
    dist.all_gather_object(turns, trainee.turn())
    size = dist.get_world_size()
    gradient = sum(p.nbytes for p in trainee.workload.model.parameters())
    sent = ITERATIONS * 2 * (size - 1) * gradient // size
    if dist.get_rank() == 0:
        seconds = max(seconds for seconds, _ in turns)
        tell(Measured(trainee.name, sent, seconds, sum(cpu_s for _, cpu_s in turns)))


def _set_up(megabytes: int) -> list[Trainee]:
    trainees = []
    for name in SYSTEMS:
        trainee, mine = held(name, megabytes)
        trainees.append(trainee)
        everyone = [mine] * dist.get_world_size()
        dist.all_gather_object(everyone, mine)
        # The first pays for what torch itself loads when it is used.
        if dist.get_rank() == 0 and name != ALONE:
            tell(max(everyone, key=lambda one: one.beside_bytes))
    return trainees


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="experiments.costs_node", description=__doc__)
    parser.add_argument("--megabytes", type=int, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    return parser.parse_args()


def main() -> None:
    """Run under torchrun; see the module's text."""
    chosen = _arguments()
    node.begin()
    trainees = _set_up(chosen.megabytes)
    for _, trainee in interleaved(trainees, chosen.rounds):
        _tell_turn(trainee)
        longest = trainee.probe()
        if dist.get_rank() == 0:
            tell(Waited(trainee.name, longest))
    for trainee in trainees:
        trainee.trained.close()
    node.end()


if __name__ == "__main__":
    main()
