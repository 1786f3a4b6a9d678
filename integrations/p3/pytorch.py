"""The PyTorch shim: hooks that hand gradients over and make each module wait for its own.

model, optimizer = p3.pytorch.distribute(model, optimizer)
for x, y in loader:
    optimizer.zero_grad(); loss_fn(model(x), y).backward(); optimizer.step()
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from p3.agreement import NoAgentWarning, check_same, release
from p3.arguments import check_arguments
from p3.default_group import exchange_over_default_group
from p3.elementwise import check_update
from p3.engine import Engine, Network, P3Error, PeerLostError, PlanMismatchError
from p3.engines import NO_CODEC, EngineKind, EngineName, EngineOptions, choose_engine
from p3.gradients import OverlapWarning, refuse_others
from p3.meter import Statistics
from p3.module_hooks import ModuleHooks, Options, Update
from p3.payloads import SparseGradientWarning
from p3.ps import PORT_BUFFER
from p3.replicate import replicate
from p3.servers import check_servers, serve
from p3.trace import Trace, open_trace
from p3.trainable import check_modules, check_optimizer, check_parameters
from p3_shaper.bands import BandTable

__all__ = [
    "Distributed",
    "NoAgentWarning",
    "OverlapWarning",
    "P3Error",
    "PeerLostError",
    "PlanMismatchError",
    "SparseGradientWarning",
    "Statistics",
    "distribute",
    "join",
    "no_sync",
    "serve",
    "synchronize",
]


def distribute(
    model: nn.Module,
    optimizer: Optimizer,
    *,
    engine: EngineName | EngineKind = "auto",
    slice_numel: int | None = None,
    port_buffer: int = PORT_BUFFER,
    bands: BandTable | None = None,
    servers: Sequence[int] = (),
    update: Update = "worker",
    codec: str = NO_CODEC,
    broadcast_buffers: bool = True,
    timeout: float = Network.timeout,
    interface: str | None = None,
    trace: str | Path | None = None,
) -> tuple[nn.Module, Distributed]:
    """Train `model` data-parallel, its most urgent gradient slices first.

    Call on every rank, after torch.distributed.init_process_group. Rank 0's parameters and
    buffers are sent to all. Returns the same model, with hooks, and an optimizer to use in the
    given one's place: its step() returns at once and each module's forward waits for its own
    parameters. `engine` moves the slices: "groups" (Gloo), "ps" (P3's parameter server), "auto"
    (see `engines.choose_engine`), or one of your own.
    `slice_numel` is the most elements in a slice (the engine's own default: 400,000 for "groups",
    50,000 for "ps"). `port_buffer`: the bytes that the switch port in front of a node holds, for
    "ps" to stay below (0: no limit). `bands` overrides the agent's band table. `servers` are the
    ranks that sum slices in the engine "ps", all workers if not given; ranks beyond the workers
    only do that, and call `serve` (docs/engines.md). `update="server"` has each of them apply the
    optimizer to its slices and hold their state; the optimizer must be one of torch's that work by
    element.
    `codec` has slices travel encoded, in "ps" alone: "fp16", "bf16", "qsgd8", "1bit", "topk"
    (docs/codecs.md).
    `broadcast_buffers` has rank 0's buffers replace all others' with every step().
    A rank that gives no sign of life for `timeout` seconds (1 or more) ends training on all; one
    that computes, or whose script is being debugged, does give them (docs/failures.md).
    `interface` is the one that slices travel on (the default: GLOO_SOCKET_IFNAME, the one that the
    agent shapes, or the one on the way to the master).
    `trace` names a file for this rank's timeline (docs/timeline.md), written by close() or at exit;
    with several ranks out.json stands for out.RANK.json.

    Gradients are averaged over ranks, as DistributedDataParallel does. Whoever reads `.grad` after
    backward() waits for the average, and is warned once (OverlapWarning; docs/pytorch.md has the
    rules). Raises P3Error when a value cannot work, torch.distributed is not initialised, a trained
    parameter is not the model's, trained by P3 already or cannot be summed, or the optimizer needs
    more than gradients (LBFGS).
    """
    network = Network(timeout, interface)
    check_arguments(model, optimizer, slice_numel, port_buffer, network)
    if not dist.is_initialized():
        raise P3Error(
            "torch.distributed is not initialised: call "
            'torch.distributed.init_process_group("gloo") first, under torchrun'
        )
    servers = tuple(servers)
    check_servers(servers, dist.get_world_size())
    updates = check_update(update, optimizer)
    kind = choose_engine(engine, dist.get_world_size(), servers, updates=updates, codec=codec)
    check_optimizer(optimizer)
    check_modules(model)
    timeline = open_trace(trace, dist.get_rank(), dist.get_world_size())
    parameters, names = _trained(model, optimizer)
    check_parameters(zip(names, parameters, strict=True))
    tensors = [*model.named_parameters(), *model.named_buffers()]
    chosen = {
        "release of P3": [release()],
        "engine": [kind.name],
        "slice_numel": [str(slice_numel or kind.slice_numel)],
        "value of servers, update, broadcast_buffers, timeout or codec": [
            str(servers),
            update,
            str(broadcast_buffers),
            f"{timeout:g} s",
            repr(codec),
        ],
        "model": [f"{name}: {tensor.dtype} {[*tensor.shape]}" for name, tensor in tensors],
        "set of trained parameters": names,
        "optimizer": [type(optimizer).__name__],
    }
    check_same(exchange_over_default_group, chosen)
    replicate(tensor for _, tensor in tensors)
    kind = kind if timeline is None else timeline.traced(kind)
    engine_options = EngineOptions(port_buffer, network, codec)
    options = Options(kind, engine_options, slice_numel, bands, servers, update, broadcast_buffers)
    hooks = ModuleHooks(model, optimizer, parameters, names, options)
    if timeline is not None:
        timeline.watch(model, zip(names, parameters, strict=True))
    return model, Distributed(optimizer, hooks, timeline)


def synchronize(optimizer: Distributed) -> None:
    """Wait until every step() so far is applied; call before reading parameters directly."""
    optimizer.synchronize()


@contextmanager
def no_sync(optimizer: Distributed) -> Iterator[None]:
    """Backward passes inside only accumulate into `.grad`; the next one outside sends the sum."""
    with optimizer.no_sync():
        yield


@contextmanager
def join(optimizer: Distributed) -> Iterator[None]:
    """Around a loop whose number of batches differs over ranks; see docs/pytorch.md.

    A rank that leaves it waits until all have, and takes part in their iterations without
    gradients: averages are still over all ranks. In the end all have the parameters, buffers and
    optimizer state of a rank that trained longest.
    """
    with optimizer.join():
        yield


class Distributed(Optimizer):
    """The user's optimizer, applied parameter by parameter as averaged gradients come back.

    Shares `param_groups` and `state` with the optimizer it stands for, so that schedulers and
    checkpoints work; the hyperparameters in force when step() is called are the ones applied.
    """

    def __init__(
        self, optimizer: Optimizer, hooks: ModuleHooks, trace: Trace | None = None
    ) -> None:
        self._hooks: ModuleHooks | None = None
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self.param_groups = optimizer.param_groups
        self.state = optimizer.state
        self._inner = optimizer
        # The user's step hooks, also those registered before.
        self._optimizer_step_pre_hooks = optimizer._optimizer_step_pre_hooks
        self._optimizer_step_post_hooks = optimizer._optimizer_step_post_hooks
        self._hooks = hooks
        self._trace = trace

    @property
    def engine(self) -> Engine | None:
        """What moves the slices; None until the first gradient, when ranks agree on the plan."""
        exchange = self._working.exchange
        return None if exchange is None else exchange.engine

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """End the iteration; returns at once. Raises P3Error for a closure."""
        if closure is not None:
            raise P3Error("step(closure) needs all parameters at once: call step() without one")
        # A scheduler made from the user's optimizer asks it whether it has stepped.
        self._inner._opt_called = True  # type: ignore[attr-defined]
        self._working.commit()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear `.grad`. Gradients that no step() followed are dropped, on every rank alike."""
        self._working.drop_uncommitted()
        self._inner.zero_grad(set_to_none)

    def stats(self) -> Statistics:
        """What communication cost this rank so far; any time, costs next to nothing."""
        exchange = self._working.exchange
        return Statistics() if exchange is None else exchange.statistics()

    def synchronize(self) -> None:
        """Wait until every step() so far is applied; call before reading parameters directly."""
        self._working.synchronize()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """See `no_sync`."""
        before, self._working.sending = self._working.sending, False
        try:
            yield
        finally:
            self._working.sending = before

    @contextmanager
    def join(self) -> Iterator[None]:
        """See `join`."""
        yield
        self._working.join()

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's own state, after every step() so far is applied."""
        self.synchronize()
        with self._working.complete_state():
            return self._inner.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the optimizer's own state, after every step() so far is applied."""
        self.synchronize()
        self._inner.load_state_dict(state_dict)
        self.param_groups = self._inner.param_groups
        self.state = self._inner.state
        self._working.relink()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused after distribute(): the slice plan is made once."""
        if self._hooks is not None:
            raise P3Error("add_param_group after distribute(): add the group first")
        super().add_param_group(param_group)

    def close(self) -> None:
        """Finish what is owed and release sockets and threads; done at exit too."""
        self._working.close()
        if self._trace is not None:
            self._trace.close()

    @property
    def _working(self) -> ModuleHooks:
        assert self._hooks is not None
        return self._hooks


def _trained(model: nn.Module, optimizer: Optimizer) -> tuple[list[nn.Parameter], list[str]]:
    """The optimizer's parameters that need gradients, by identity, with the model's names."""
    wanted = {id(p) for group in optimizer.param_groups for p in group["params"]}
    found = [(n, p) for n, p in model.named_parameters() if id(p) in wanted and p.requires_grad]
    missing = len(wanted - {id(p) for _, p in model.named_parameters()})
    if missing:
        raise P3Error(
            f"{missing} of the optimizer's parameters are not the model's: make the optimizer "
            "from model.parameters()"
        )
    if not found:
        raise P3Error("the optimizer holds no parameter of the model that needs a gradient")
    for name, parameter in found:
        refuse_others(name, parameter)
    return [parameter for _, parameter in found], [name for name, _ in found]
