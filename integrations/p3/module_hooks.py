"""Hooks on one model: gradients out as they appear, each module's forward waits for its own.

The first forward pass is watched; with the first gradient the ranks agree on a slice plan and
the engine opens.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Variable
from torch.compiler import disable
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from p3.agreement import agree_on_bands, announce_job, check_same
from p3.buffers import Buffers
from p3.default_group import (
    agree_on_order,
    default_store,
    exchange_over_default_group,
    next_job_name,
)
from p3.engine import Agreed, Engine, Job, P3Error
from p3.engines import EngineKind, EngineOptions
from p3.exchange import Exchange
from p3.forward_order import ForwardWatch
from p3.gradients import Gradients, in_backward
from p3.joining import share_state, take_part
from p3.payloads import Payloads
from p3.remote_update import RemoteUpdater
from p3.replicate import replicate
from p3.schedule import make_schedule
from p3.slicing import Parameter, SlicePlan
from p3.tensors import dtype_name
from p3.updater import Updater, own_gradient
from p3_agent.client import Registration
from p3_shaper.bands import BandTable

Update = Literal["worker", "server"]
Register = Callable[[Callable[..., None]], RemovableHandle]


@dataclass(frozen=True, slots=True)
class Options:
    """What the user chose in `distribute`."""

    engine: EngineKind
    engine_options: EngineOptions
    slice_numel: int | None
    bands: BandTable | None
    servers: tuple[int, ...]
    update: Update
    broadcast_buffers: bool

    @property
    def agreed_slice_numel(self) -> int:
        """The user's slice size, else the engine's."""
        return self.engine.slice_numel if self.slice_numel is None else self.slice_numel


class ModuleHooks:
    """Watches a model's forward and backward passes and drives its exchange."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        parameters: list[nn.Parameter],
        names: list[str],
        options: Options,
    ) -> None:
        self._model = model
        self._optimizer = optimizer
        self._parameters = parameters
        self._names = names
        self._options = options
        self._buffers: Buffers | None = Buffers(model, dist.get_rank())
        if not (options.broadcast_buffers and self._buffers.nbytes and dist.get_world_size() > 1):
            self._buffers = None
        waiting = () if self._buffers is None else self._buffers.waiting
        self._watch = ForwardWatch(model, parameters, waiting)
        self._waits: dict[nn.Module, tuple[int, ...]] = {}
        self.exchange: Exchange | None = None
        self.sending = True
        self._closed = False
        self._registration: Registration | None = None
        self._joined = 0
        self._frozen = _held_frozen(model, optimizer)
        self._gradients = Gradients(parameters)
        self._in_pass = False
        self._pass_sends = False
        enter: Callable[[nn.Module], None] = disable(self._enter)  # type: ignore[no-untyped-call]
        self._handles = [
            *_module_handles(model, enter, self._settle),
            *_gradient_handles(parameters, self._gradient),
            _loaded_handle(model, self._parameters_changed),
        ]
        atexit.register(self.close)

    def commit(self) -> None:
        """The user's step(): apply this iteration's updates as their sums come back."""
        self._pass_ended()
        for name, parameter in self._frozen:
            if parameter.requires_grad:
                raise P3Error(
                    f"{name} needed no gradient at distribute() and does now: close() the "
                    "optimizer and distribute() again after the change"
                )
        exchange = self.exchange or self._agree()
        self._gradients.commit(exchange.updater.settings())

    def drop_uncommitted(self) -> None:
        """Forget gradients that no step() followed."""
        self._pass_ended()
        self._gradients.drop()

    def join(self) -> None:
        """This rank has no more batches: take part until no rank has any; blocks."""
        self._pass_ended()
        self._gradients.forget()
        exchange = self.exchange or self._agree()
        self._joined += 1
        ends = take_part(exchange, default_store(), f"p3/{exchange.name}/joined/{self._joined}")
        if min(ends) == max(ends):
            return
        # The others' parameters and optimizers have not seen what the last iterations brought.
        last = ends.index(max(ends))
        if exchange.updater.has_averages:
            share_state(self._optimizer, self._parameters, last)
            exchange.updater.relink()
        buffers = () if self._buffers is None else self._model.buffers()
        replicate((*self._model.parameters(), *buffers), last)

    def synchronize(self) -> None:
        """Wait until every committed update is applied."""
        if self.exchange is not None:
            self.exchange.synchronize()

    def complete_state(self) -> AbstractContextManager[None]:
        """Inside, the optimizer holds all of its state."""
        return nullcontext() if self.exchange is None else self.exchange.updater.complete_state()

    def relink(self) -> None:
        """The optimizer's state was replaced."""
        if self.exchange is not None:
            self.exchange.updater.relink()

    def close(self) -> None:
        """Remove the hooks, finish what is owed, release the engine. Again is harmless."""
        atexit.unregister(self.close)
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._gradients.close()
        if self.exchange is not None and not self._closed:
            self._closed = True
            self.exchange.close()
            if self._registration is not None:
                self._registration.close()

    def _enter(self, module: nn.Module) -> None:
        if in_backward() != -1:  # torch.utils.checkpoint computes again what has waited before
            self._pass_began()
            return
        if self._in_pass:
            self._pass_ended()  # it raised, and torch did not say so
        if self.exchange is None:
            self._watch.called(module)
        else:
            self.exchange.enter(self._waits.get(module, ()))

    def _parameters_changed(self) -> None:
        if self.exchange is not None:
            self.exchange.updater.parameters_changed()

    def _settle(self, module: nn.Module) -> None:
        if self.exchange is not None:
            self.exchange.wait(self._watch.owned(module))

    def _gradient(self, number: int, gradient: Tensor) -> None:
        if not self.sending:
            self._gradients.accumulated(number)
            return
        if not self._pass_sends:
            self._pass_began()
            self._pass_sends = True
            self.exchange = self.exchange or self._agree()
            self._gradients.begin()
        assert self.exchange is not None
        self.exchange.give(number, gradient)

    def _pass_began(self) -> None:
        # Reentrant checkpoints run passes inside of one; the outermost is the first to be seen,
        # as it computes their modules again.
        if not self._in_pass:
            self._in_pass = True
            queue: Callable[[Callable[[], None]], None] = Variable._execution_engine.queue_callback
            queue(self._pass_ended)

    def _pass_ended(self) -> None:
        self._in_pass = self._pass_sends = False

    def _agree(self) -> Exchange:
        """Agree with all ranks on order, slices and bands, and open the engine."""
        order = self._watch.order()
        layer_of, starts = agree_on_order(order)
        self._waits = order.waits
        parameters = [
            Parameter(name, p.numel(), dtype_name(p.dtype), p.element_size(), layer)
            for name, p, layer in zip(self._names, self._parameters, layer_of, strict=True)
        ]
        tensors: list[Tensor] = [*self._parameters]
        if self._buffers is not None:
            parameters.append(self._buffers.planned)
            tensors.append(self._buffers.example)
        kind = self._options.engine
        plan = kind.cut(
            parameters,
            dist.get_world_size(),
            self._options.agreed_slice_numel,
            self._options.servers,
        )
        payloads = Payloads(plan, tensors)
        layout = [kind.name, plan.digest().hex(), repr(payloads.orders)]
        check_same(exchange_over_default_group, {"slice plan": layout})
        table = agree_on_bands(exchange_over_default_group, self._options.bands)
        updater, open_engine = self._updater(plan, payloads)
        schedule = make_schedule(plan.layer_bytes(), len(table), starts, kind.order, kind.cutting)
        agreed = Agreed(next_job_name(), dist.get_rank(), plan, schedule, table)
        self.exchange = Exchange(agreed, payloads, updater, open_engine, self._buffers)
        self._registration = announce_job(agreed.name)
        self._gradients.open(self.exchange)
        return self.exchange

    def _updater(
        self, plan: SlicePlan, payloads: Payloads
    ) -> tuple[Updater, Callable[[Job], Engine]]:
        """What applies updates, and what opens an engine for it."""
        kind, options = self._options.engine, self._options.engine_options
        what = (self._optimizer, self._parameters)
        opening = kind.open_updating
        if self._options.update == "worker" or opening is None:
            return Updater(*what, payloads.gradients), lambda job: kind.open(job, options)
        updater = RemoteUpdater(*what, payloads, plan, dist.get_rank())

        def open_updating(job: Job) -> Engine:
            engine = opening(job, updater.recipe, options)
            updater.connect(engine)
            return engine

        return updater, open_updating


def _held_frozen(model: nn.Module, optimizer: Optimizer) -> list[tuple[str, nn.Parameter]]:
    """What the optimizer would step if it had gradients, and has none now."""
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    return [
        (name, parameter)
        for name, parameter in model.named_parameters()
        if id(parameter) in held and not parameter.requires_grad
    ]


class ModuleHook:
    """Does `action` with the module. Copies and pickles of a model have hooks that do nothing."""

    __slots__ = ("_action",)

    def __init__(self, action: Callable[[nn.Module], None]) -> None:
        self._action = action

    def __call__(self, module: nn.Module, *_: object) -> None:
        """Called by torch."""
        self._action(module)

    def __deepcopy__(self, memo: dict[int, Any]) -> ModuleHook:
        return ModuleHook(_nothing)

    def __reduce__(self) -> tuple[type[ModuleHook], tuple[Callable[[nn.Module], None]]]:
        return ModuleHook, (_nothing,)


def _nothing(module: nn.Module) -> None:
    """What a copied hook does."""


# torch leaves these registrations untyped: that ends here.
def _module_handles(
    model: nn.Module, enter: Callable[[nn.Module], None], settle: Callable[[nn.Module], None]
) -> Iterator[RemovableHandle]:
    entering, settling = ModuleHook(enter), ModuleHook(settle)
    for module in model.modules():
        yield module.register_forward_pre_hook(entering, prepend=True)
        registrations: tuple[Register, ...] = (
            module.register_state_dict_pre_hook,
            module.register_load_state_dict_pre_hook,
        )
        for register in registrations:
            yield register(settling)


def _gradient_handles(
    parameters: list[nn.Parameter], on_gradient: Callable[[int, Tensor], None]
) -> Iterator[RemovableHandle]:
    for number, parameter in enumerate(parameters):

        def hook(parameter: Tensor, number: int = number) -> None:
            gradient = own_gradient(parameter)
            if gradient is not None:
                # backward(create_graph=True) leaves it in the graph.
                on_gradient(number, gradient.detach() if gradient.requires_grad else gradient)

        register: Register = parameter.register_post_accumulate_grad_hook
        yield register(hook)


def _loaded_handle(model: nn.Module, changed: Callable[[], None]) -> RemovableHandle:
    register: Register = model.register_load_state_dict_post_hook
    return register(ModuleHook(lambda _: changed()))
