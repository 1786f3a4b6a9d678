"""The program that torchrun starts on both nodes for bench_transport: transports take turns.

python -m experiments.transport_node --megabytes 100 --rounds 5 --transports gloo ps iperf3
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist

from experiments import node
from experiments.messages import Measured, tell
from experiments.rounds import interleaved
from experiments.transports import IPERF3_S, NAMES
from p3.arithmetic import add_in_numpy
from p3.default_group import exchange_over_default_group
from p3.engine import Engine, Job, P3Error
from p3.groups import GlooGroups
from p3.ps import ParameterServer
from p3.schedule import make_schedule
from p3.slicing import Parameter, SlicePlan, make_plan
from p3_shaper.bands import default_table

PATIENCE_S = 60.0
_ITEMSIZE = 4
_IPERF3_PORT = 5201


@dataclass(frozen=True, slots=True)
class Turn:
    """What one rank saw of one transport's turn: bytes it sent, seconds, processor seconds."""

    payload_bytes: int
    seconds: float
    cpu_s: float


def gloo(numel: int) -> Callable[[], Turn]:
    """An all-reduce of `numel` floats in one piece."""
    tensor = torch.zeros(numel)
    size = dist.get_world_size()

    def turn() -> Turn:
        began, cpu = time.perf_counter(), time.process_time()
        dist.all_reduce(tensor)
        seconds = time.perf_counter() - began
        sent = 2 * (size - 1) * numel * _ITEMSIZE // size
        return Turn(sent, seconds, time.process_time() - cpu)

    return turn


class SliceTransport:
    """An engine of P3, outside any training: hands over `numel` floats in slices, awaits all."""

    def __init__(self, name: str, numel: int, open_engine: Callable[[Job], Engine]) -> None:
        self._plan = _plan(numel)
        self._changed = threading.Condition()
        self._done = 0
        self._error: P3Error | None = None
        self._iteration = itertools.count()
        table = default_table()
        self._engine = open_engine(
            Job(
                name=name,
                rank=dist.get_rank(),
                plan=self._plan,
                schedule=make_schedule(self._plan.layer_bytes(), len(table)),
                table=table,
                payloads=[
                    np.zeros(piece.payload_bytes, dtype=np.uint8) for piece in self._plan.slices
                ],
                adders={"float32": add_in_numpy("float32")},
                on_done=self._on_done,
                on_error=self._on_error,
            )
        )

    def turn(self) -> Turn:
        """Sum every slice once."""
        iteration = next(self._iteration)
        self._done = 0
        before = self._engine.statistics().payload_bytes_sent
        began, cpu = time.perf_counter(), time.process_time()
        for piece in reversed(self._plan.slices):
            self._engine.submit(piece.index, iteration)
        self._wait()
        seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu
        return Turn(self._engine.statistics().payload_bytes_sent - before, seconds, cpu_s)

    def close(self) -> None:
        """Release the engine."""
        self._engine.close()

    def _wait(self) -> None:
        with self._changed:
            everything = len(self._plan.slices)
            if not self._changed.wait_for(
                lambda: self._done == everything or self._error is not None, PATIENCE_S
            ):
                raise P3Error(f"{self._done} of {everything} slices in {PATIENCE_S:.0f} s")
            if self._error is not None:
                raise self._error

    def _on_done(self, index: int) -> None:  # noqa: ARG002
        with self._changed:
            self._done += 1
            self._changed.notify()

    def _on_error(self, error: P3Error) -> None:
        with self._changed:
            self._error = error
            self._changed.notify()


def _plan(numel: int) -> SlicePlan:
    """Eight layers of one tensor each, so that every band has something to carry."""
    layers = 8
    share = numel // layers
    parameters = [
        Parameter(f"tensor{layer}", share, "float32", _ITEMSIZE, layer) for layer in range(layers)
    ]
    return make_plan(parameters, dist.get_world_size())


def iperf3() -> Turn:
    """Both directions at once, rank 0 the client and rank 1 the server, for IPERF3_S."""
    if dist.get_rank() == 1:
        return _iperf3_server()
    dist.barrier()
    return _iperf3_client()


def _iperf3_server() -> Turn:
    cpu = _children_cpu_s()
    command = ["iperf3", "--server", "--one-off", "--forceflush", "--port", str(_IPERF3_PORT)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8") as server:
        assert server.stdout is not None
        while "listening" not in server.stdout.readline():
            if server.poll() is not None:
                raise RuntimeError("iperf3's server ended before it listened; is its port taken?")
        dist.barrier()
        server.stdout.read()
    return Turn(0, 0.0, _children_cpu_s() - cpu)


def _iperf3_client() -> Turn:
    cpu = _children_cpu_s()
    command = ["iperf3", "--client", _second_node(), "--port", str(_IPERF3_PORT)]
    done = subprocess.run(
        [*command, "--bidir", "--time", str(IPERF3_S), "--json"],
        capture_output=True,
        check=True,
    )
    end = json.loads(done.stdout)["end"]
    both = (end["sum_received"], end["sum_received_bidir_reverse"])
    sent = sum(int(direction["bytes"]) for direction in both)
    return Turn(sent // 2, float(both[0]["seconds"]), _children_cpu_s() - cpu)


def _second_node() -> str:
    # torchrun's master is the cluster's first node.
    network, _, number = node.master_address().rpartition(".")
    return f"{network}.{int(number) + 1}"


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _tell_turn(name: str, mine: Turn) -> None:
    turns: list[Turn | None] = [None] * dist.get_world_size()
    dist.all_gather_object(turns, mine)
    known = [turn for turn in turns if turn is not None]
    if dist.get_rank() == 0:
        seconds = max(turn.seconds for turn in known)
        tell(Measured(name, known[0].payload_bytes, seconds, sum(turn.cpu_s for turn in known)))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="experiments.transport_node", description=__doc__)
    parser.add_argument("--megabytes", type=int, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--transports", nargs="+", choices=NAMES, required=True)
    return parser.parse_args()


def _open(
    names: Sequence[str], numel: int
) -> tuple[dict[str, Callable[[], Turn]], list[SliceTransport]]:
    engines: dict[str, Callable[[Job], Engine]] = {
        # Links without shaping have no shallow port behind them.
        "ps": lambda job: ParameterServer(job, exchange=exchange_over_default_group, port_buffer=0),
        "groups": GlooGroups,
    }
    slices = {name: SliceTransport(name, numel, engines[name]) for name in names if name in engines}
    turns: dict[str, Callable[[], Turn]] = {name: slices[name].turn for name in slices}
    if "gloo" in names:
        turns["gloo"] = gloo(numel)
    if "iperf3" in names:
        turns["iperf3"] = iperf3
    return turns, list(slices.values())


def main() -> None:
    """Run under torchrun; see the module's text."""
    chosen = _arguments()
    node.begin()
    turns, slices = _open(chosen.transports, chosen.megabytes * 1_000_000 // _ITEMSIZE)
    for name in turns:
        if name != "iperf3":
            turns[name]()  # connections warm up, memory is touched
    for _, name in interleaved(list(turns), chosen.rounds):
        dist.barrier()
        _tell_turn(name, turns[name]())
    for transport in slices:
        transport.close()
    node.end()


if __name__ == "__main__":
    main()
