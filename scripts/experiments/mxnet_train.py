"""Trains a network with MXNet on one node, with the store that it is told."""

from __future__ import annotations

import argparse
import hashlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

import p3.mxnet
from experiments import process
from experiments.emulation import emulations
from experiments.messages import Finished, Iterated, tell
from experiments.mxnet_layers import emulated_network, spans

RESNET18 = "resnet18"


@dataclass(frozen=True, slots=True)
class Workload:
    """A network, and the mean loss over its inputs, in autograd's scope."""

    net: gluon.Block
    images: int
    loss: Callable[[], mx.nd.NDArray]


def make(name: str, rank: int, batch: int) -> Workload:
    """An emulated network, or gluon's real ResNet-18 on `batch` pictures of noise a node."""
    mx.random.seed(1)
    if name != RESNET18:
        net = emulated_network(emulations()[name], rank)
        net.initialize(mx.init.Uniform(1.0))
        value = mx.nd.zeros(1)
        return Workload(net, 1, lambda: net(value))
    real = gluon.model_zoo.vision.get_resnet(1, 18, classes=10, thumbnail=True)
    real.initialize(mx.init.Xavier())
    real.hybridize()
    random = np.random.RandomState(rank)
    pictures = mx.nd.array(random.standard_normal((batch, 3, 32, 32)))
    wanted = mx.nd.array(random.randint(0, 10, batch))
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    return Workload(real, batch, lambda: loss_of(real(pictures), wanted).mean())


def train(rank: int, workload: Workload, trainer: gluon.Trainer, iterations: int) -> Finished:
    """Train and measure. `compute_s` is left 0."""
    starts: list[float] = []
    losses: list[float] = []
    cpu, sent = time.process_time(), process.sent_bytes()
    for iteration in range(iterations):
        starts.append(time.perf_counter())
        with autograd.record():
            loss = workload.loss()
        loss.backward()
        trainer.step(1)
        # Queued is not done: a program looks at its loss, which is there after forward.
        losses.append(float(loss.asscalar()))
        if rank == 0:
            tell(Iterated(iteration, losses[-1]))
    mx.nd.waitall()
    ended = time.perf_counter()
    found = workload.net.collect_params().values()
    # Running means are each node's own.
    parameters = [parameter.data() for parameter in found if parameter.grad_req != "null"]
    return Finished(
        rank=rank,
        starts=starts,
        ended=ended,
        losses=losses,
        compute_s=0.0,
        accuracy=None,
        digest=hashlib.sha256(b"".join(p.asnumpy().tobytes() for p in parameters)).hexdigest(),
        parameters=sum(parameter.size for parameter in parameters),
        images=workload.images,
        sent_bytes=process.sent_bytes() - sent,
        payload_bytes=0,
        cpu_s=time.process_time() - cpu,
    )


def _updates_on_kvstore(store: str) -> bool | None:
    if store == "local":
        return None
    # MXNet's own P3 cannot update on its servers.
    return os.environ.get("DMLC_PS_VAN_TYPE") != "p3"


def write_timeline(path: Path) -> None:
    """What this node's device did, layer by layer, in Chrome's Trace Event Format."""
    events = [
        {
            "name": f"{span.name} {span.layer}",
            "cat": span.name,
            "ph": "X",
            "ts": span.begin * 1e6,
            "dur": (span.end - span.begin) * 1e6,
            "pid": 0,
            "tid": span.name,
            "args": {"layer": span.layer},
        }
        for span in spans
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.encode({"traceEvents": events}))


def main() -> None:
    """Run on every node with RANK and the like in the environment."""
    parser = argparse.ArgumentParser(prog="experiments.mxnet_train", description=__doc__)
    parser.add_argument("--store", choices=("dist_p3", "dist_sync", "local"), required=True)
    parser.add_argument("--workload", choices=(*emulations(), RESNET18), required=True)
    parser.add_argument("--batch", type=int, default=32, help="pictures of the real network")
    parser.add_argument("--iterations", type=int, required=True)
    parser.add_argument("--timeline", type=Path, help="rank 0's, for chrome://tracing")
    parser.add_argument("--port-buffer", type=int, default=256_000)
    chosen = parser.parse_args()
    rank = process.begin()
    workload = make(chosen.workload, rank, chosen.batch)
    p3.mxnet.watch(workload.net)
    ours = chosen.store == "dist_p3"
    trainer = gluon.Trainer(
        # A list: of a dict MXNet takes the names' order, for its own priorities too.
        list(workload.net.collect_params().values()),
        "sgd",
        {"learning_rate": 0.01 if chosen.workload == RESNET18 else 1.0},
        kvstore=p3.mxnet.Dist_P3(port_buffer=chosen.port_buffer) if ours else chosen.store,
        update_on_kvstore=_updates_on_kvstore(chosen.store),
    )
    tell(train(rank, workload, trainer, chosen.iterations))
    if chosen.timeline is not None and rank == 0:
        write_timeline(chosen.timeline)


if __name__ == "__main__":
    main()
