"""The MXNet shim: a KVStore `dist_p3` that sums gradients over the ranks, most urgent first.

import p3.mxnet
net.hybridize()
p3.mxnet.watch(net)
trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, kvstore="dist_p3")

Every rank is a worker and a server. Written for MXNet 1.9.1.
"""

from __future__ import annotations

import atexit
import os
import sys
import warnings
import weakref
from pathlib import Path

import mxnet as mx
import numpy as np

from p3.agreement import NoAgentWarning, agree_on_bands, check_same, release
from p3.engine import Agreed, Engine, Job, Network, P3Error
from p3.mxnet_engine import Array, has_threads
from p3.mxnet_order import learned, watch
from p3.mxnet_sums import Sums
from p3.ps import PORT_BUFFER, ParameterServer
from p3.schedule import make_schedule
from p3.slicing import DEFAULT_SLICE_NUMEL, Parameter, make_plan
from p3.star import Star, place_of
from p3_shaper.bands import BandTable

__all__ = ["Dist_P3", "NoAgentWarning", "NoOrderWarning", "P3Error", "watch"]

Key = int | str
DTYPES = ("float16", "float32", "float64")


class NoOrderWarning(UserWarning):
    """Nobody watched a forward pass, so that priorities follow the trainer's order."""


@mx.kvstore.KVStoreBase.register
class Dist_P3(mx.kvstore.KVStoreBase):  # type: ignore[misc]  # noqa: N801  (MXNet lowers the name)
    """`gluon.Trainer(kvstore="dist_p3")`, or an instance of this to choose other values.

    `slice_numel` is the most elements in a slice, `port_buffer` the bytes that the switch port in
    front of this node holds, `bands` overrides the agent's band table. `timeout`, in seconds, is
    how long ranks wait for each other to come, and how long one may give no sign of life later;
    `interface` the one that slices travel on (docs/failures.md). RANK, WORLD_SIZE, MASTER_ADDR
    and MASTER_PORT in the environment say where the ranks meet; they prove to know P3_TOKEN there.

    Gradients are summed, as `dist_sync` does; `Trainer.step(batch_size)` divides. Raises P3Error
    when ranks do not find together or differ; a rank that is lost later is an MXNetError where
    the program next waits for a result, and a P3Error at the next step.
    """

    def __init__(
        self,
        *,
        slice_numel: int = DEFAULT_SLICE_NUMEL,
        port_buffer: int = PORT_BUFFER,
        bands: BandTable | None = None,
        timeout: float = Network.timeout,
        interface: str | None = None,
    ) -> None:
        if not has_threads():
            raise P3Error(
                "MXNET_ENGINE_TYPE is NaiveEngine, which ends every operation before the next: "
                "dist_p3 needs MXNet's default engine, so unset it"
            )
        self._slice_numel = slice_numel
        self._port_buffer = port_buffer
        self._bands = bands
        self._place = place_of(os.environ)
        self._network = Network(timeout, interface)
        self._star = Star(self._place, timeout=timeout)
        self._values: dict[Key, Array] = {}
        self._numbers: dict[Key, int] = {}
        self._sums: Sums | None = None
        self._updater: mx.optimizer.Updater | None = None
        atexit.register(self.close)
        _stores.add(self)

    # What gluon.Trainer and Module call; see mxnet.kvstore.KVStoreBase

    @property
    def type(self) -> str:
        """What MXNet looks for "dist" in, and Module "_sync", to divide by all ranks' batches."""
        return "dist_p3_sync"

    @property
    def rank(self) -> int:
        """This process's number."""
        return self._place.rank

    @property
    def num_workers(self) -> int:
        """How many ranks there are."""
        return self._place.world_size

    @staticmethod
    def is_capable(capability: str) -> bool:
        """It can apply an optimizer."""
        return capability.lower() == "optimizer"

    def broadcast(
        self, key: Key, value: Array | list[Array], out: Array | list[Array], priority: int = 0
    ) -> None:
        """Rank 0's `value` for every rank's `out`; blocks."""
        del priority
        target = self._one(key, out)
        self.init(key, value)
        memory = (
            self._one(key, value).asnumpy() if not self.rank else np.empty_like(target.asnumpy())
        )
        self._star.broadcast(memory.data)
        mx.nd.array(memory, dtype=memory.dtype).copyto(target.as_nd_ndarray())
        self._values[key] = target

    def init(self, key: Key, value: Array | list[Array]) -> None:
        """Make `key` known (Module calls this alone where it updates by itself)."""
        if self._sums is not None:
            raise P3Error(
                f"parameter {key} comes after the first step: the slice plan is made once, so "
                "initialise every parameter before"
            )
        self._values[key] = self._one(key, value)

    def pushpull(
        self,
        key: Key,
        value: Array | list[Array],
        out: Array | list[Array] | None = None,
        priority: int = 0,
    ) -> None:
        """Sum `value` over the ranks into it, or update `out` with the sum. Returns at once.

        `priority` is not looked at: forward order is known better here.
        """
        del priority
        gradient = self._one(key, value)
        sums = self._sums or self._open()
        if sums.error is not None:
            raise sums.error
        if key not in self._numbers:
            raise P3Error(
                f"parameter {key} has a gradient now and had none at the first step, when the "
                "slice plan was made: make a new trainer where you unfreeze it"
            )
        total = sums.start(self._numbers[key], gradient)
        target = gradient if out is None else self._one(key, out)
        if self._updater is not None and out is not None:
            if isinstance(target, mx.np.ndarray):
                total = total.as_np_ndarray()
            self._updater(key, total, target)
        else:
            total.copyto(target.as_nd_ndarray())

    def set_optimizer(self, optimizer: mx.optimizer.Optimizer) -> None:
        """Update parameters here: on every rank, with the same sums."""
        self._updater = mx.optimizer.get_updater(optimizer)

    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> None:
        """Write the optimizer's state to a file."""
        Path(fname).write_bytes(self._working_updater.get_states(dump_optimizer))

    def load_optimizer_states(self, fname: str) -> None:
        """Read the optimizer's state from a file of save_optimizer_states."""
        self._working_updater.set_states(Path(fname).read_bytes())

    def push(self, key: Key, value: object, priority: int = 0) -> None:
        """Refused: only sparse gradients come this way."""
        del value, priority
        raise P3Error(f"parameter {key} has a row_sparse gradient: dist_p3 takes dense ones only")

    def set_gradient_compression(self, compression_params: object) -> None:
        """Refused."""
        raise P3Error(f"dist_p3 does not compress gradients: drop {compression_params}")

    def layers(self) -> list[int]:
        """Each trained parameter's place in forward order, by key; empty before the first step."""
        return [] if self._sums is None else self._sums.layers()

    def close(self) -> None:
        """Wait for what is under way, then release sockets and threads; done at exit too."""
        atexit.unregister(self.close)
        self._star.close()
        if self._sums is None:
            return
        sums, self._sums = self._sums, None
        dying = getattr(sys, "last_value", None) is not None
        if dying:
            sums.close(P3Error(f"rank {self.rank} ends with an error: see its log"))
            _drain()
            return
        if (error := _drain()) is not None:
            print(f"p3: {error}", file=sys.stderr)
        sums.close()

    @property
    def _working_updater(self) -> mx.optimizer.Updater:
        if self._updater is None:
            raise P3Error("the optimizer's states are the trainer's own: update_on_kvstore is off")
        return self._updater

    def _open(self) -> Sums:
        """Agree with all ranks on order, slices and bands, and open the engine."""
        exchange = self._star.exchange
        keys = list(self._values)
        # gluon hands over running means too, which are not trained; Module's have no gradient here.
        trained = [key for key in keys if self._values[key].grad is not None] or keys
        values = [self._values[key] for key in trained]
        order = exchange(learned(values, self._before_forward))[0]
        assert order is None or isinstance(order, list)
        if order is None:
            self._warn_of_no_order(trained)
        plan = make_plan(
            [
                Parameter(
                    str(key),
                    value.size,
                    np.dtype(value.dtype).name,
                    np.dtype(value.dtype).itemsize,
                    layer,
                )
                for key, value, layer in zip(
                    trained, values, order or range(len(trained)), strict=True
                )
            ],
            self.num_workers,
            self._slice_numel,
            # Where no forward pass tells when a step is over, a parameter that has no gradient
            # in it, as Module's fixed ones, must not hold others up.
            pack=order is not None,
        )
        parts = [f"{parameter}" for parameter in plan.parameters]
        check_same(
            exchange,
            {
                "release of P3": [release()],
                "timeout": [f"{self._network.timeout:g} s"],
                "slice_numel": [str(self._slice_numel)],
                "slice plan": [*parts, plan.digest().hex()],
            },
        )
        table = agree_on_bands(exchange, self._bands)
        self._numbers = {key: number for number, key in enumerate(trained)}
        schedule = make_schedule(plan.layer_bytes(), len(table))
        agreed = Agreed("mxnet", self.rank, plan, schedule, table)
        self._sums = Sums(agreed, [value.shape for value in values], self._open_engine)
        return self._sums

    def _open_engine(self, job: Job) -> Engine:
        return ParameterServer(
            job,
            exchange=self._star.exchange,
            network=self._network,
            port_buffer=self._port_buffer,
        )

    def _before_forward(self) -> None:
        if self._sums is not None:
            self._sums.complete()

    @staticmethod
    def _warn_of_no_order(keys: list[Key]) -> None:
        if not all(isinstance(key, str) for key in keys):  # Module's are in its graph's order
            warnings.warn(
                "no forward pass was watched: slices leave in the order of the trainer's "
                "parameters; call p3.mxnet.watch(net) before the first forward pass",
                NoOrderWarning,
                stacklevel=4,
            )

    def _one(self, key: Key, value: Array | list[Array]) -> Array:
        """The only array of `value`."""
        arrays = value if isinstance(value, list) else [value]
        if len(arrays) != 1:
            raise P3Error(
                f"parameter {key} is on {len(arrays)} devices: dist_p3 takes one device a rank, "
                "so start a rank for each"
            )
        array = arrays[0]
        if array.stype != "default":
            raise P3Error(f"parameter {key} is {array.stype}: dist_p3 takes dense ones only")
        if (name := np.dtype(array.dtype).name) not in DTYPES:
            raise P3Error(f"parameter {key} is {name}: dist_p3 takes {', '.join(DTYPES)}")
        return array


_stores: weakref.WeakSet[Dist_P3] = weakref.WeakSet()


def _before_fork() -> None:
    """Let sums come to their end before the process forks, as a DataLoader does for its workers.

    MXNet waits for them in the middle of the fork, where Python's threads, and P3's among them,
    stand still: it would wait for good.
    """
    if any(store.layers() for store in list(_stores)) and (error := _drain()) is not None:
        print(f"p3: {error}", file=sys.stderr)


os.register_at_fork(before=_before_fork)


def _drain() -> mx.MXNetError | None:
    """Wait for all that MXNet has queued; the first error, if any.

    MXNet raises one error a call, and would raise those that are left in its own exit handler.
    """
    first: mx.MXNetError | None = None
    while True:
        try:
            mx.nd.waitall()
        except mx.MXNetError as error:
            first = first or error
        else:
            return first
