"""`distribute(trace=...)`: what the training thread does, and slices, on one timeline.

Nothing here is called unless a timeline is made: hooks of its own stand around the shim's, and
an engine is wrapped before the shim sees it.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor, nn
from torch.compiler import disable
from torch.utils.hooks import RemovableHandle

from p3.commits import Commit
from p3.engine import Engine, EngineStatistics, Job, P3Error
from p3.engines import EngineKind
from p3.module_hooks import ModuleHook, Register
from p3.remote_update import UpdatingEngine
from p3.run_states import RunState
from p3.slice_trace import SliceTrace
from p3.timeline import COMPUTE, WAITS, Span, Timeline, clock, file_for

MIN_WAIT_NS = 20_000
"""A forward pass that need not wait takes less to find that out; that is no wait."""


class TracedEngine:
    """An engine whose slices are on the timeline from their hand-over until they are done."""

    def __init__(self, timeline: Timeline, job: Job, open_engine: Callable[[Job], Engine]) -> None:
        self._trace = SliceTrace(timeline, job.plan, job.schedule, job.table)
        self._on_done = job.on_done
        self._inner = open_engine(replace(job, on_done=self._ends, trace=self._trace))

    def submit(self, index: int, iteration: int) -> None:
        """See `engine.Engine`."""
        self._trace.begins(index, iteration, "queued")
        self._inner.submit(index, iteration)

    def advance(self, position: int) -> None:
        """See `engine.Engine`."""
        self._inner.advance(position)

    def statistics(self) -> EngineStatistics:
        """See `engine.Engine`."""
        return self._inner.statistics()

    def close(self) -> None:
        """See `engine.Engine`."""
        self._inner.close()
        self._trace.gives_up()

    def _ends(self, index: int) -> None:
        # First: once the shim knows, it may hand the slice over again.
        self._trace.ends(index)
        self._on_done(index)


class TracedUpdatingEngine(TracedEngine):
    """The same of an engine whose servers update."""

    def __init__(
        self, timeline: Timeline, job: Job, open_engine: Callable[[Job], UpdatingEngine]
    ) -> None:
        def opening(traced: Job) -> Engine:
            self._updating = open_engine(traced)
            return self._updating

        super().__init__(timeline, job, opening)
        self.optimizer = self._updating.optimizer

    def commit(self, iteration: int, commit: Commit) -> None:
        """See `remote_update.UpdatingEngine`."""
        self._updating.commit(iteration, commit)

    def collect(self) -> list[RunState]:
        """See `remote_update.UpdatingEngine`."""
        return self._updating.collect()

    def load(self, index: int, states: Sequence[RunState]) -> None:
        """See `remote_update.UpdatingEngine`."""
        self._updating.load(index, states)

    def finish(self) -> None:
        """See `remote_update.UpdatingEngine`."""
        self._updating.finish()


def traced(kind: EngineKind, timeline: Timeline) -> EngineKind:
    """The same kind of engine, with its slices on `timeline`."""
    updating = kind.open_updating
    return replace(
        kind,
        open=lambda job, options: TracedEngine(
            timeline, job, lambda inner: kind.open(inner, options)
        ),
        open_updating=updating
        and (
            lambda job, recipe, options: TracedUpdatingEngine(
                timeline, job, lambda inner: updating(inner, recipe, options)
            )
        ),
    )


class PassTrace:
    """Forward and backward passes of a model, and what its modules waited for.

    To be made after the shim's hooks, which lie between two of these. The backward of a layer is
    the time since the last gradient, or since the forward pass: torch says when a gradient is
    complete, not when work on it began, and the first one's holds the loss.
    """

    def __init__(
        self, model: nn.Module, parameters: Iterable[tuple[str, nn.Parameter]], timeline: Timeline
    ) -> None:
        self._timeline = timeline
        self._names = {
            module: name or type(model).__name__ for name, module in model.named_modules()
        }
        self._waiting: dict[nn.Module, int] = {}
        self._inside: list[tuple[nn.Module, int]] = []
        self._since = clock()
        self._handles = [*self._module_handles(model), *self._gradient_handles(parameters)]

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _comes(self, module: nn.Module) -> None:
        self._waiting[module] = clock()

    def _begins(self, module: nn.Module) -> None:
        now, came = clock(), self._waiting.pop(module, None)
        if came is not None and now - came >= MIN_WAIT_NS:
            self._timeline.add(Span(WAITS, f"wait {self._names[module]}", [("", came)], now, {}))
        self._inside.append((module, now))

    def _ends(self, module: nn.Module) -> None:
        self._since = clock()
        # One that raised has not ended, nor will it.
        while self._inside:
            inner, began = self._inside.pop()
            if inner is module:
                self._compute(f"forward {self._names[module]}", began)
                return

    def _gradient(self, name: str) -> None:
        began, self._since = self._since, clock()
        self._compute(f"backward {name}", began)

    def _compute(self, name: str, began: int) -> None:
        self._timeline.add(Span(COMPUTE, name, [("", began)], self._since, {}))

    def _module_handles(self, model: nn.Module) -> Iterator[RemovableHandle]:
        comes, begins, ends = map(_outside_graphs, (self._comes, self._begins, self._ends))
        for module in model.modules():
            yield module.register_forward_pre_hook(comes, prepend=True)
            yield module.register_forward_pre_hook(begins)
            yield module.register_forward_hook(ends)

    def _gradient_handles(
        self, parameters: Iterable[tuple[str, nn.Parameter]]
    ) -> Iterator[RemovableHandle]:
        for name, parameter in parameters:

            def hook(_: Tensor, name: str = name) -> None:
                self._gradient(name)

            register: Register = parameter.register_post_accumulate_grad_hook
            yield register(hook)


def _outside_graphs(action: Callable[[nn.Module], None]) -> ModuleHook:
    """A hook that torch.compile runs, and does not compile: it reads a clock."""
    disabled: Callable[[nn.Module], None] = disable(action)  # type: ignore[no-untyped-call]
    return ModuleHook(disabled)


class Trace:
    """One rank's timeline from `distribute` until the optimizer is closed, or the program ends."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._passes: PassTrace | None = None
        # Before the shim registers its own end, and so called after it: with all slices on it.
        atexit.register(self.close)

    def traced(self, kind: EngineKind) -> EngineKind:
        """The engine to open in place of `kind`."""
        return traced(kind, self._timeline)

    def watch(self, model: nn.Module, parameters: Iterable[tuple[str, nn.Parameter]]) -> None:
        """Put the model's passes on it; call when the shim's hooks are there."""
        self._passes = PassTrace(model, parameters, self._timeline)

    def close(self) -> None:
        """Write the file. Again is harmless."""
        atexit.unregister(self.close)
        if self._passes is not None:
            self._passes.close()
            self._passes = None
            self._timeline.write()


def open_trace(trace: str | Path | None, rank: int, world_size: int) -> Trace | None:
    """What `distribute(trace=...)` asks for. P3Error when its file cannot be written."""
    if trace is None:
        return None
    file = file_for(trace, rank, world_size)
    try:
        return Trace(Timeline(file, rank))
    except OSError as error:
        raise P3Error(f"trace={str(file)!r} cannot be written: {error.strerror}") from error
