"""One MXNet rank: runs scenarios that come on stdin, answers on stdout. Needs .venv-mxnet."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType

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
    return {**compared(values(net), values(alone)), "layers": layers}


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


def module(on_store: bool, fixed: list[str], reference: bool = False) -> Result:
    """The symbolic API; its states are saved and loaded between two epochs."""
    parts = [np.random.RandomState(rank) for rank in range(WORLD_SIZE)]
    pictures = [part.randn(4, BATCH, 10) for part in parts]
    wanted = [part.randint(0, 4, (4, BATCH)) for part in parts]
    mine = range(WORLD_SIZE) if reference else [RANK]
    source = mx.io.NDArrayIter(
        np.concatenate([pictures[rank] for rank in mine], axis=1).reshape(-1, 10),
        np.concatenate([wanted[rank] for rank in mine], axis=1).reshape(-1),
        BATCH * len(mine),
    )
    weight = mx.sym.var("z_weight", lr_mult=0.5)
    hidden = mx.sym.FullyConnected(mx.sym.var("data"), weight, num_hidden=40, name="z")
    hidden = mx.sym.FullyConnected(hidden, num_hidden=20, name="m")
    out = mx.sym.FullyConnected(hidden, num_hidden=4, name="a")
    mod = mx.mod.Module(mx.sym.SoftmaxOutput(out, name="softmax"), fixed_param_names=fixed)
    store = None if reference else Dist_P3()
    os.environ["MXNET_UPDATE_ON_KVSTORE"] = str(int(on_store))
    mx.random.seed(1)
    states = f"/dev/shm/p3-module-{os.getpid()}"
    for epoch in range(2):
        mod.fit(
            source,
            begin_epoch=epoch,
            num_epoch=epoch + 1,
            kvstore=store,
            optimizer="sgd",
            optimizer_params=OPTIMIZERS["sgd"],
            initializer=mx.init.Xavier(),
        )
        mod.save_optimizer_states(states)
        mod.load_optimizer_states(states)
    del os.environ["MXNET_UPDATE_ON_KVSTORE"]
    Path(states).unlink()
    found = {name: value.asnumpy() for name, value in mod.get_params()[0].items()}
    if store is None:
        return found
    store.close()
    alone = module(on_store, fixed, reference=True)
    return compared(list(found.values()), [np.asarray(alone[name]) for name in found])


def compared(found: list[np.ndarray], alone: list[np.ndarray]) -> Result:
    """How far `found` is from what one process had alone, and its digest."""
    pairs = zip(found, alone, strict=True)
    return {
        "distance": max(float(np.abs(one - other).max()) for one, other in pairs),
        "digest": hashlib.sha256(b"".join(value.tobytes() for value in found)).hexdigest(),
    }


def frozen(watched: bool) -> Result:
    """The last layer's weight, which shares a slice where it may, rests for some steps."""
    nets = [network(), network()]
    store = Dist_P3()
    if watched:
        p3.mxnet.watch(nets[0])
    for net, kvstore in zip(nets, [store, None], strict=True):
        trainer = gluon.Trainer(net.collect_params(), "sgd", OPTIMIZERS["sgd"], kvstore=kvstore)
        weight = net[3].weight
        for steps in range(3):
            weight.grad_req = "null" if steps == 1 else "write"
            train(net, trainer, range(2 * steps, 2 * steps + 2), kvstore is None)
    store.close()
    return compared(values(nets[0]), values(nets[1]))


def imported(folder: str) -> Result:
    """A network that was exported to files and read back is a single block."""
    net = network(hybrid=True)
    net(mx.nd.zeros((1, 3, 8, 8)))
    name = str(Path(folder) / f"net{RANK}")
    net.export(name)
    net = gluon.SymbolBlock.imports(f"{name}-symbol.json", ["data"], f"{name}-0000.params")
    p3.mxnet.watch(net)
    store = Dist_P3()
    # gluon.Trainer sorts these by name: from the last layer to the first.
    trainer = gluon.Trainer(net.collect_params(), "sgd", OPTIMIZERS["sgd"], kvstore=store)
    train(net, trainer, range(1))
    layers = store.layers()
    store.close()
    return {"layers": layers}


def forks() -> Result:
    """Every rank forks while sums are under way: rank 1 comes to them later."""
    net = network()
    store = Dist_P3()
    trainer = gluon.Trainer(net.collect_params(), "sgd", OPTIMIZERS["sgd"], kvstore=store)
    statuses = []
    for step in range(3):
        time.sleep(0.3 * RANK)
        train(net, trainer, range(step, step + 1))
        child = multiprocessing.Process(target=os.getpid)
        child.start()
        child.join()
        statuses.append(child.exitcode)
    store.close()
    return {"statuses": statuses, "digest": digest(net)}


def numpy_interface() -> Result:
    """Arrays of mx.np."""
    mx.npx.set_np()
    try:
        found = [_numpy_interface(reference) for reference in (False, True)]
    finally:
        mx.npx.reset_np()
    return compared(*found)


def _numpy_interface(reference: bool) -> list[np.ndarray]:
    mx.random.seed(1)
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(30, activation="relu"), gluon.nn.Dense(4))
    net.initialize()
    net.hybridize()
    store = None if reference else Dist_P3()
    if store is not None:
        p3.mxnet.watch(net)
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.01}, kvstore=store)
    for step in range(3):
        x, _ = joint(step) if reference else batch(RANK, step)
        with autograd.record():
            loss = (net(x.as_np_ndarray()) ** 2).mean(axis=1)
        loss.backward()
        trainer.step(BATCH * WORLD_SIZE)
    found = values(net)
    if store is not None:
        store.close()
    return found


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
    """Half precision; MXNet multiplies no such matrices on a CPU, so vectors."""

    class Weighted(gluon.HybridBlock):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.weight = self.params.get("weight", shape=(3_000,), init="ones")

        def hybrid_forward(
            self,
            F: ModuleType,  # noqa: N803
            x: mx.nd.NDArray,
            weight: mx.nd.NDArray,
        ) -> mx.nd.NDArray:
            return F.sum(x * weight)

    net = Weighted()
    net.initialize()
    net.cast("float16")
    net.hybridize()
    p3.mxnet.watch(net)
    store = Dist_P3()
    options = {"learning_rate": 0.25, "momentum": 0.5, "multi_precision": True}
    trainer = gluon.Trainer(net.collect_params(), "sgd", options, kvstore=store)
    for _ in range(2):
        with autograd.record():
            loss = net(mx.nd.ones(3_000, dtype="float16") * (RANK + 0.5))
        loss.backward()
        trainer.step(1)
    weight = net.weight.data()
    found = sorted(set(weight.asnumpy().tolist()))
    store.close()
    return {"values": found, "dtype": weight.dtype.__name__}


def refusals() -> Result:
    store = Dist_P3()
    dense = gluon.nn.Dense(3, in_units=2)
    dense.initialize()
    twice = gluon.nn.Dense(3, in_units=2)
    twice.initialize(ctx=[mx.cpu(0), mx.cpu(1)])
    looked_up = gluon.nn.Embedding(10, 4, sparse_grad=True)
    looked_up.initialize()
    sparse = gluon.Parameter("w", shape=(10, 4), stype="row_sparse", grad_stype="row_sparse")
    sparse.initialize()
    integers = mx.nd.zeros(3, dtype="int32")

    def step(parameters: object, kvstore: object, compress: object = None) -> None:
        gluon.Trainer(parameters, "sgd", kvstore=kvstore, compression_params=compress).step(1)

    def on_two_devices() -> None:
        out = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=4, name="f")
        mod = mx.mod.Module(out, label_names=None, context=[mx.cpu(0), mx.cpu(1)])
        mod.bind([("data", (4, 3))])
        mod.init_params()
        mod.init_optimizer(store)

    def naive() -> None:
        os.environ["MXNET_ENGINE_TYPE"] = "NaiveEngine"
        try:
            Dist_P3()
        finally:
            del os.environ["MXNET_ENGINE_TYPE"]

    attempts: dict[str, Callable[[], None]] = {
        "devices": lambda: step(twice.collect_params(), store),
        "devices of a module": on_two_devices,
        "sparse gradient": lambda: step(looked_up.collect_params(), store),
        "sparse": lambda: step([sparse], "dist_p3"),
        "pushed": lambda: store.push(0, mx.nd.sparse.zeros("row_sparse", (10, 2))),
        "integers": lambda: store.broadcast(0, integers, [integers]),
        "compressed": lambda: step(dense.collect_params(), store, {"type": "2bit"}),
        "naive": naive,
    }
    said = {}
    for name, attempt in attempts.items():
        try:
            attempt()
        except (P3Error, ValueError) as error:
            said[name] = f"{type(error).__name__}: {error}"
    store.close()
    return said


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
        frozen,
        imported,
        forks,
        numpy_interface,
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
