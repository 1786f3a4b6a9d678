"""One MXNet rank: runs scenarios that come on stdin, answers on stdout. Needs .venv-mxnet."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

import p3.mxnet
from p3.engine import P3Error
from p3.mxnet import Dist_P3

RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
Result = Mapping[str, object]
BATCH = 8
OPTIMIZERS = {
    "sgd": {"learning_rate": 0.05, "momentum": 0.9, "wd": 1e-3},
    "nag": {"learning_rate": 0.05, "momentum": 0.9},
    "adam": {"learning_rate": 0.01},
}


def network(hybrid: bool = False) -> gluon.nn.HybridBlock:
    """Layers larger than a slice and smaller ones; names in the other order."""
    mx.random.seed(1)
    net = gluon.nn.HybridSequential(prefix="")
    net.add(gluon.nn.Conv2D(8, 3, activation="relu", prefix="z_"))
    net.add(gluon.nn.Dense(300, activation="relu", prefix="y_"))
    net.add(gluon.nn.Dense(200, prefix="x_"), gluon.nn.Dense(10, prefix="a_"))
    net.initialize(mx.init.Xavier())
    net(mx.nd.zeros((1, 3, 8, 8)))
    net[2].weight.lr_mult = 0.5
    net[1].weight.wd_mult = 0.0
    if hybrid:
        net.hybridize()
    return net


def batch(rank: int, step: int) -> tuple[mx.nd.NDArray, mx.nd.NDArray]:
    random = np.random.RandomState(1000 * rank + step)
    pictures = random.randn(BATCH, 3, 8, 8)
    return mx.nd.array(pictures), mx.nd.array(random.randint(0, 10, BATCH))


def joint(step: int) -> tuple[mx.nd.NDArray, mx.nd.NDArray]:
    parts = [batch(rank, step) for rank in range(WORLD_SIZE)]
    return mx.nd.concat(*[x for x, _ in parts], dim=0), mx.nd.concat(*[y for _, y in parts], dim=0)


def train(
    net: gluon.nn.HybridBlock, trainer: gluon.Trainer, steps: range, all_data: bool = False
) -> None:
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    for step in steps:
        x, y = joint(step) if all_data else batch(RANK, step)
        with autograd.record():
            loss = loss_of(net(x), y)
        loss.backward()
        trainer.step(BATCH * WORLD_SIZE)


def values(net: gluon.nn.HybridBlock) -> list[np.ndarray]:
    return [parameter.data().asnumpy() for parameter in net.collect_params().values()]


def digest(net: gluon.nn.HybridBlock) -> str:
    return hashlib.sha256(b"".join(value.tobytes() for value in values(net))).hexdigest()


def trained(
    optimizer: str,
    hybrid: bool = False,
    on_store: bool | None = None,
    reference: bool = False,
) -> tuple[gluon.nn.HybridBlock, list[int]]:
    """A network after 5 steps over the store, or alone on the joint batch; and its layers."""
    net = network(hybrid)
    store = None if reference else Dist_P3(slice_numel=5_000)
    if not reference:
        p3.mxnet.watch(net)
    trainer = gluon.Trainer(
        net.collect_params(),
        optimizer,
        OPTIMIZERS[optimizer],
        kvstore=store,
        update_on_kvstore=on_store,
    )
    train(net, trainer, range(5), reference)
    layers = []
    if store is not None:
        layers = store.layers()
        mx.nd.waitall()
        store.close()
    return net, layers


def equals_joint(optimizer: str, hybrid: bool, on_store: bool | None) -> Result:
    net, layers = trained(optimizer, hybrid, on_store)
    alone, _ = trained(optimizer, hybrid, reference=True)
    distance = max(
        float(np.abs(one - other).max())
        for one, other in zip(values(net), values(alone), strict=True)
    )
    return {"distance": distance, "digest": digest(net), "layers": layers}


def by_name(folder: str) -> Result:
    """As a user writes it; states are saved, loaded, and lead to the same end."""
    net = network()
    trainer = gluon.Trainer(net.collect_params(), "sgd", OPTIMIZERS["sgd"], kvstore="dist_p3")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(net, trainer, range(3))
    states, saved = str(Path(folder) / f"states{RANK}"), values(net)
    trainer.save_states(states)
    train(net, trainer, range(3, 6))
    first = digest(net)
    for parameter, value in zip(net.collect_params().values(), saved, strict=True):
        parameter.data()[:] = mx.nd.array(value)  # gluon loads none beside a distributed store
    trainer.load_states(states)
    train(net, trainer, range(3, 6))
    result = {
        "digests": [first, digest(net)],
        "warnings": [warning.category.__name__ for warning in caught],
    }
    trainer._kvstore.close()
    return result


def module() -> Result:
    """The symbolic API."""
    random = np.random.RandomState(RANK)
    data = mx.sym.var("data")
    hidden = mx.sym.FullyConnected(data, num_hidden=40, name="z")
    out = mx.sym.SoftmaxOutput(
        mx.sym.FullyConnected(hidden, num_hidden=4, name="a"), name="softmax"
    )
    source = mx.io.NDArrayIter(random.randn(32, 10), random.randint(0, 4, 32), 8)
    store = Dist_P3()
    mod = mx.mod.Module(out)
    mod.fit(source, num_epoch=2, kvstore=store, optimizer="sgd", initializer=mx.init.Xavier())
    found = [value.asnumpy() for value in mod.get_params()[0].values()]
    store.close()
    return {"digest": hashlib.sha256(b"".join(v.tobytes() for v in found)).hexdigest()}


def waits() -> Result:
    """Rank 1 keeps layer 1's gradient back: rank 0 has layer 0 and goes on; then it has both."""
    store = Dist_P3(slice_numel=2_000)
    weights = [mx.nd.full(3_000, 5 + RANK) for _ in range(2)]
    for key, weight in enumerate(weights):
        weight.attach_grad()
        store.broadcast(key, weight, [weight])
    store.set_optimizer(mx.optimizer.SGD(learning_rate=1.0))
    gradients = [mx.nd.ones(3_000) * (key + 1) for key in range(2)]
    for key in (1, 0) if RANK == 0 else (0,):
        store.pushpull(key, gradients[key], out=weights[key])
    first = float(weights[0].asnumpy()[0])
    later = weights[1] * 2  # queued: nothing here waits for it
    print(json.dumps("has layer 0"), flush=True)
    sys.stdin.readline()
    if RANK == 1:
        store.pushpull(1, gradients[1], out=weights[1])
        later = weights[1] * 2
    result = {"first": first, "later": float(later.asnumpy()[0])}
    store.close()
    return result


def half() -> Result:
    """Half precision, at the store: MXNet multiplies no such matrices on a CPU."""
    store = Dist_P3()
    weight = mx.nd.ones(3_000, dtype="float16")
    weight.attach_grad()
    store.broadcast(0, weight, [weight])
    store.set_optimizer(mx.optimizer.SGD(learning_rate=0.5, multi_precision=True))
    for _ in range(2):
        store.pushpull(0, mx.nd.ones(3_000, dtype="float16") * (RANK + 0.5), out=weight)
    found = sorted(set(weight.asnumpy().tolist()))
    store.close()
    return {"values": found, "dtype": weight.dtype.__name__}


def refusals() -> Result:
    store = Dist_P3()
    weight = mx.nd.zeros(10)
    sparse = mx.nd.sparse.zeros("row_sparse", (10, 2))
    attempts: list[Callable[[], None]] = [
        lambda: store.broadcast(0, weight, [weight, weight]),
        lambda: store.broadcast(0, sparse, [sparse]),
        lambda: store.push(0, sparse),
        lambda: store.broadcast(0, weight.astype("int32"), [weight.astype("int32")]),
        lambda: store.set_gradient_compression({"type": "2bit"}),
    ]
    said = []
    for attempt in attempts:
        try:
            attempt()
        except P3Error as error:
            said.append(str(error))
    store.close()
    return {"said": said}


def differs() -> Result:
    """Another model on rank 1."""
    store = Dist_P3()
    weight = mx.nd.zeros(10)
    weight.attach_grad()
    store.broadcast(RANK, weight, [weight])
    try:
        store.pushpull(RANK, weight.grad)
        said = ""
    except P3Error as error:
        said = f"{type(error).__name__}: {error}"
    store.close()
    return {"said": said}


def native(folder: str, kind: str) -> Result:
    """MXNet's own store, or ours, by name; parameters go to a file."""
    net = network()
    net[2].weight.lr_mult = net[1].weight.wd_mult = 1.0  # MXNet's servers lose them
    if kind == "dist_p3":
        p3.mxnet.watch(net)
    trainer = gluon.Trainer(net.collect_params(), "sgd", OPTIMIZERS["sgd"], kvstore=kind)
    train(net, trainer, range(5))
    np.savez(Path(folder) / f"{kind}-{RANK}.npz", *values(net))
    mx.nd.waitall()
    if kind == "dist_p3":
        trainer._kvstore.close()
    return {"foreign": sorted({"torch", "pyroute2"} & set(sys.modules))}


def main() -> None:
    warnings.simplefilter("ignore", p3.mxnet.NoAgentWarning)
    scenarios: list[Callable[..., Result]] = [
        equals_joint,
        by_name,
        module,
        waits,
        half,
        refusals,
        differs,
        native,
    ]
    known = {scenario.__name__: scenario for scenario in scenarios}
    for line in sys.stdin:
        name, arguments = json.loads(line)
        print(json.dumps(known[name](*arguments)), flush=True)


if __name__ == "__main__":
    main()
