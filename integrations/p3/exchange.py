"""Between a shim and an engine: payloads filled, sums waited for, updates applied.

Two threads meet here: the training thread hands gradients over and waits for updates; the
updater thread applies the optimizer as sums come back, most urgent layer first. Engines report
from threads of their own.
"""

from __future__ import annotations

import heapq
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from p3.buffers import Buffers
from p3.engine import Agreed, Engine, Job, P3Error
from p3.meter import Meter, Statistics, layer_names
from p3.payloads import Payloads
from p3.updater import Settings, Updater

BATCH_NUMEL = 50_000
"""Elements that one call of the optimizer may update: a call costs as much as about that many, so
that more at once would hold the most urgent up, and fewer waste the processor."""


@dataclass(frozen=True, slots=True)
class Step:
    """What one step() of the user's applies: these settings; these gradients, not the averages."""

    settings: Sequence[Settings]
    kept: dict[int, torch.Tensor | None] = field(default_factory=dict)


class Exchange:
    """One model's slices on their way. Iteration k runs from one `commit` to the next.

    Every method may raise the P3Error that ended the exchange.
    """

    def __init__(
        self,
        agreed: Agreed,
        payloads: Payloads,
        updater: Updater,
        open_engine: Callable[[Job], Engine],
        buffers: Buffers | None = None,
    ) -> None:
        plan = agreed.plan
        self.name = agreed.name
        self._plan = plan
        self._schedule = agreed.schedule
        self._payloads = payloads
        self.updater = updater
        self._meter = Meter(plan.layers)
        self._slices_of = plan.slices_of()
        self._members = [[part.parameter for part in piece.segments] for piece in plan.slices]
        self._layer_of = [parameter.layer for parameter in plan.parameters]
        self._all = range(len(plan.parameters))
        self._buffers = buffers
        self.parameters = self._all if buffers is None else self._all[:-1]
        """Numbers of the trained ones; the buffers have the one after these."""
        # The training thread's own.
        self._iteration = 0
        self._position = -1
        self._given: set[int] = set()
        self._absent: set[int] = set()
        self._unfilled = [len(members) for members in self._members]
        # Shared, under one lock.
        self._lock = threading.Lock()
        self._wake_updater = threading.Condition(self._lock)
        self._applied_more = threading.Condition(self._lock)
        self._left = [len(slices) for slices in self._slices_of]
        self._summed = [0] * len(plan.parameters)
        self._applied = [0] * len(plan.parameters)
        self._ready: list[tuple[int, int, int]] = []
        self._steps: dict[int, Step | None] = {}
        self._committed = 0
        self._summing_awaited = False
        self._closing = False
        self._error: P3Error | None = None
        self.engine = open_engine(
            Job(
                agreed.name,
                agreed.rank,
                plan,
                agreed.schedule,
                agreed.table,
                payloads.bytes,
                payloads.adders,
                self._on_done,
                self._on_error,
            )
        )
        self._thread = threading.Thread(target=self._update, name="p3-updater", daemon=True)
        self._thread.start()

    # -- the training thread ---------------------------------------------------------------

    @property
    def iteration(self) -> int:
        """How many have ended."""
        return self._iteration

    @property
    def has_uncommitted(self) -> bool:
        """Whether gradients were given since the last commit."""
        return bool(self._given)

    def give(self, parameter: int, gradient: torch.Tensor) -> None:
        """Hand over a parameter's gradient; its slices leave as soon as they are full."""
        if parameter in self._given:
            name = self._plan.parameters[parameter].name
            raise P3Error(
                f"one backward pass gave {name} a gradient twice, as a module called twice under "
                "torch.utils.checkpoint(use_reentrant=True) does: use use_reentrant=False, or run "
                "the pass under p3.pytorch.no_sync(optimizer), and step() will send all"
            )
        # First, or the slices would get the band of the previous layer's position.
        self._advance(self._schedule.backward_position(self._iteration, self._layer_of[parameter]))
        self._hand_over(parameter, gradient)

    def commit(
        self,
        settings: Sequence[Settings] | None,
        kept: Mapping[int, torch.Tensor | None] | None = None,
    ) -> None:
        """End the iteration: apply its updates with `settings`, or drop them for None.

        Without any settings, (), this rank takes part in others' iteration, in which it has not
        trained: its parameters change only where they come back from servers.
        Parameters in `kept` are stepped with the gradient given there, or not for None. Returns
        at once, the updates being made as the sums come back; after those in `kept`, if any, as
        the user may change their gradients afterwards.
        """
        self._complete(dropped=not settings)
        self.updater.committed(self._iteration, settings, self._absent)
        self._given.clear()
        self._absent.clear()
        applies = settings or (settings is not None and not self.updater.has_averages)
        step = Step(settings or (), dict(kept or {})) if applies else None
        with self._lock:
            self._steps[self._iteration] = step
            self._steps.pop(self._iteration - 2, None)
            self._iteration += 1
            self._committed = self._iteration
            self._wake_updater.notify()
        if step is not None and step.kept:
            self.wait(step.kept)
            step.kept.clear()

    def average(self, parameter: int) -> torch.Tensor | None:
        """The iteration's averaged gradient once it is in; None if no rank had one.

        No gradient may be given in this iteration any more.
        """
        self._complete(dropped=False)
        self._summing_awaited = True
        self._wait((parameter,), self._iteration + 1, counts=self._summed)
        self._summing_awaited = False
        return self._average(parameter)

    def last_average(self, parameter: int) -> torch.Tensor | None:
        """As `average`, of the iteration that ended last; waits until it is applied."""
        self.wait((parameter,))
        return self._average(parameter)

    def enter(self, parameters: Sequence[int]) -> None:
        """A forward pass needs `parameters` now: wait for every committed update of them."""
        if parameters:
            layers = [self._layer_of[number] for number in parameters if number in self.parameters]
            layer = min(layers, default=None)
            if layer is not None:
                self._advance(self._schedule.forward_position(self._iteration, layer))
            self._wait(parameters, self._committed, layer)

    def wait(self, parameters: Collection[int]) -> None:
        """Wait until every committed update of `parameters` is applied."""
        self._wait(parameters, self._committed)

    def synchronize(self) -> None:
        """Wait until every committed update is applied."""
        self._wait(self._all, self._committed)

    def statistics(self) -> Statistics:
        """What was counted so far; any time, also after an error."""
        return Statistics(
            iterations=self._iteration,
            waited_by_layer=dict(zip(layer_names(self._plan), self._meter.waited_s, strict=True)),
            waited_elsewhere_s=self._meter.waited_elsewhere_s,
            payload_bytes_by_band=self.engine.statistics().payload_bytes_by_band,
            communication_s=self._meter.communication_s,
        )

    def close(self) -> None:
        """Finish what is owed, unless the program is dying, then release engine and thread."""
        dying = getattr(sys, "last_value", None) is not None
        try:
            if not dying and not self.has_uncommitted and self._error is None:
                self.synchronize()
                self.updater.finish()
        except P3Error as error:
            # Raised where the training thread can see it if it still trains; said here if not.
            print(f"p3: {error}", file=sys.stderr)
        finally:
            with self._lock:
                self._closing = True
                self._wake_updater.notify()
            self._thread.join()
            self.engine.close()

    def _advance(self, position: int) -> None:
        # A layer may have thousands of parameters.
        if position != self._position:
            self._position = position
            self.engine.advance(position)

    def _complete(self, *, dropped: bool) -> None:
        """Hand over what backward passes did not: `.grad` as it is, if there is one; buffers."""
        for number in self._all:
            if number not in self._given:
                self._hand_over(number, None if dropped else self._own(number))

    def _own(self, number: int) -> torch.Tensor | None:
        if self._buffers is None or number in self.parameters:
            return self.updater.own_gradient(number)
        return self._buffers.pack()

    def _average(self, parameter: int) -> torch.Tensor | None:
        present = self._payloads.present((parameter,))
        return self._payloads.gradients[parameter] if present else None

    def _hand_over(self, parameter: int, gradient: torch.Tensor | None) -> None:
        # The buffer may still hold the last iteration's sum if no forward waited for it.
        if self._error is not None or self._applied[parameter] < self._iteration:
            self._wait((parameter,), self._iteration, self._layer_of[parameter])
        self._given.add(parameter)
        if gradient is None:
            self._absent.add(parameter)
        flat = None if gradient is None else self._payloads.flatten(parameter, gradient)
        for part in self._payloads.parts[parameter]:
            # Slice by slice: the first leaves while a large gradient is still being copied.
            self._payloads.fill(part, flat)
            index = part.slice
            self._unfilled[index] -= 1
            if not self._unfilled[index]:
                self._unfilled[index] = len(self._members[index])
                self._payloads.seal(index, self._absent)
                self._meter.hands_over()
                self.engine.submit(index, self._iteration)

    def _wait(
        self,
        parameters: Collection[int],
        iterations: int,
        layer: int | None = None,
        *,
        counts: list[int] | None = None,
    ) -> None:
        # Counts only grow, so that what is seen without the lock holds; most often all is there.
        counts = self._applied if counts is None else counts
        if self._error is None and all(counts[p] >= iterations for p in parameters):
            return
        began = time.perf_counter()
        with self._lock:
            for parameter in parameters:
                while counts[parameter] < iterations:
                    if self._error is not None:
                        raise self._error
                    self._applied_more.wait()
            if self._error is not None:
                raise self._error
        self._meter.waited(layer, time.perf_counter() - began)

    # -- the engine's threads --------------------------------------------------------------

    def _on_done(self, index: int) -> None:
        with self._lock:
            self._meter.comes_back()
            for parameter in self._members[index]:
                self._left[parameter] -= 1
                if not self._left[parameter]:
                    self._left[parameter] = len(self._slices_of[parameter])
                    self._summed[parameter] += 1
                    key = (self._applied[parameter], self._layer_of[parameter], parameter)
                    heapq.heappush(self._ready, key)
            self._wake_updater.notify()
            if self._summing_awaited:
                self._applied_more.notify_all()

    def _on_error(self, error: P3Error) -> None:
        with self._lock:
            self._error = self._error or error
            self._wake_updater.notify()
            self._applied_more.notify_all()

    # -- the updater's thread --------------------------------------------------------------

    def _update(self) -> None:
        while batch := self._next_batch():
            iteration = batch[0][0]
            numbers = [parameter for _, _, parameter in batch]
            try:
                self._apply(iteration, numbers)
            except P3Error as error:
                self._on_error(error)
                return
            except Exception as error:  # noqa: BLE001  (a user's optimizer may raise anything)
                failure = P3Error(f"the optimizer failed in iteration {iteration}: {error!r}")
                failure.__cause__ = error
                self._on_error(failure)
                return
            with self._lock:
                for parameter in numbers:
                    self._applied[parameter] = iteration + 1
                self._applied_more.notify_all()

    def _next_batch(self) -> list[tuple[int, int, int]]:
        """What is ready, most urgent first, a little at a time; empty at the end."""
        with self._lock:
            while not (self._ready and self._ready[0][0] < self._committed):
                if self._closing or self._error is not None:
                    return []
                self._wake_updater.wait()
            batch = [heapq.heappop(self._ready)]
            numel = self._numel(batch[0])
            while self._ready and self._ready[0][0] == batch[0][0]:
                numel += self._numel(self._ready[0])
                if numel > BATCH_NUMEL:
                    break
                batch.append(heapq.heappop(self._ready))
            return batch

    def _numel(self, entry: tuple[int, int, int]) -> int:
        return self._plan.parameters[entry[2]].numel

    def _apply(self, iteration: int, numbers: Sequence[int]) -> None:
        step = self._steps[iteration]
        if step is None:
            return
        kept = step.kept
        stepped = [number for number in numbers if kept.get(number) is not None]
        stepped += self._payloads.present(number for number in numbers if number not in kept)
        if self._buffers is not None and self.parameters.stop in stepped:
            stepped.remove(self.parameters.stop)
            self._buffers.unpack(self._payloads.gradients[self.parameters.stop])
        if stepped:
            self.updater.apply(stepped, step.settings, kept)
