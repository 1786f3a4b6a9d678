"""Sums of gradients as operations of MXNet's dependency engine.

MXNet copies a gradient into P3's payload and then begins our operation on it; the operation ends
when the sum is there. Whatever reads the sum waits for that in MXNet's engine, and nothing else
waits: not the program, not backward, not another layer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence

import mxnet as mx
import numpy as np

from p3.arithmetic import Bytes, add_in_numpy
from p3.engine import Agreed, Engine, Job, P3Error
from p3.mxnet_engine import Array, Completion, Failure, Operations, array_on
from p3.slicing import SlicePlan


class Sums:
    """Every parameter's gradient, summed over the ranks once an iteration.

    `shapes[p]` is parameter p's. Only the training thread calls `start` and `close`.
    """

    def __init__(
        self,
        agreed: Agreed,
        shapes: Sequence[tuple[int, ...]],
        open_engine: Callable[[Job], Engine],
    ) -> None:
        self._plan = plan = agreed.plan
        self._schedule = agreed.schedule
        payloads, self._stages = _memory(plan, shapes)
        self._slices_of = plan.slices_of()
        self._members = [[part.parameter for part in piece.segments] for piece in plan.slices]
        self._operations = Operations(self._begin)
        self._lock = threading.Lock()
        self._completions: dict[int, Completion] = {}
        # Those that share a slice; a parameter shares no more than one.
        self._shared = [members for members in self._members if len(members) > 1]
        self._neighbours = {number: members for members in self._shared for number in members}
        self._started = [0] * len(plan.parameters)
        self._iterations = [0] * len(plan.parameters)
        self._unfilled = [len(members) for members in self._members]
        self._left = [len(slices) for slices in self._slices_of]
        self._front = _Front(plan)
        self._failure: Failure | None = None
        self.error: P3Error | None = None
        dtypes = {piece.dtype for piece in plan.slices}
        self._engine = open_engine(
            Job(
                name=agreed.name,
                rank=agreed.rank,
                plan=plan,
                schedule=agreed.schedule,
                table=agreed.table,
                payloads=payloads,
                adders={dtype: add_in_numpy(dtype) for dtype in dtypes},
                on_done=self._done,
                on_error=self._fail,
            )
        )

    def start(self, parameter: int, gradient: Array) -> Array:
        """Sum `gradient` over the ranks, when it is there; returns at once.

        What is returned holds the sum for whoever reads it before the next `start`.
        """
        neighbours = self._neighbours.get(parameter, ())
        steps = self._started[parameter]
        if steps == max((self._started[other] for other in neighbours), default=steps):
            self._complete(neighbours)
        if steps == 1:
            never = [number for number, started in enumerate(self._started) if not started]
            with self._lock:
                self._front.forget(never)
        self._start(parameter, gradient.as_nd_ndarray())
        return self._stages[parameter]

    def complete(self) -> None:
        """A step is over.

        A parameter that had no gradient in it counts as one of zeros where others share its
        slice: one that is frozen by now must not hold them up.
        """
        for members in self._shared:
            self._complete(members)

    def layers(self) -> list[int]:
        """Each parameter's place in forward order."""
        return [parameter.layer for parameter in self._plan.parameters]

    def close(self, error: P3Error | None = None) -> None:
        """Release the engine. What is under way fails with `error`."""
        if error is not None:
            self._fail(error)
        self._engine.close()
        self._fail(P3Error("the store dist_p3 is closed"))

    def _complete(self, members: Sequence[int]) -> None:
        steps = max((self._started[parameter] for parameter in members), default=0)
        for parameter in members:
            if self._started[parameter] < steps:
                stage = self._stages[parameter]
                self._start(parameter, mx.nd.zeros(stage.shape, dtype=stage.dtype))

    def _start(self, parameter: int, gradient: Array) -> None:
        self._started[parameter] += 1
        gradient.copyto(self._stages[parameter])
        if self._slices_of[parameter]:
            self._operations.push(parameter, self._stages[parameter])

    # In MXNet's threads

    def _begin(self, parameter: int, completion: Completion) -> None:
        full: list[int] = []
        with self._lock:
            failure = self._failure
            if failure is None:
                self._completions[parameter] = completion
                iteration = self._iterations[parameter]
                for index in self._slices_of[parameter]:
                    self._unfilled[index] -= 1
                    if not self._unfilled[index]:
                        self._unfilled[index] = len(self._members[index])
                        full.append(index)
        if failure is not None:
            completion(failure)
            return
        if full:
            layer = self._plan.parameters[parameter].layer
            self._engine.advance(self._schedule.backward_position(iteration, layer))
        for index in full:
            self._engine.submit(index, iteration)

    # In the engine's thread

    def _done(self, index: int) -> None:
        complete: list[Completion] = []
        position: int | None = None
        with self._lock:
            for parameter in self._members[index]:
                self._left[parameter] -= 1
                if not self._left[parameter]:
                    self._left[parameter] = len(self._slices_of[parameter])
                    self._iterations[parameter] += 1
                    reached = self._front.passed(parameter)
                    if reached is not None:
                        following = self._iterations[parameter]
                        position = self._schedule.forward_position(following, reached)
                    if parameter in self._completions:
                        complete.append(self._completions.pop(parameter))
        for completion in complete:
            completion()
        if position is not None:
            self._engine.advance(position)

    def _fail(self, error: P3Error) -> None:
        with self._lock:
            if self.error is not None:
                return
            self.error = error
            self._failure = Failure(str(error))
            abandoned = list(self._completions.values())
            self._completions.clear()
        for completion in abandoned:
            completion(self._failure)


class _Front:
    """The first layer, in forward order, whose sums are not all there: a forward pass gets to it.

    MXNet computes behind the program's back, so that where a node is can be seen only so.
    """

    def __init__(self, plan: SlicePlan) -> None:
        self._layers = [parameter.layer for parameter in plan.parameters]
        self._of_layer = [0] * plan.layers
        for parameter, slices in zip(plan.parameters, plan.slices_of(), strict=True):
            self._of_layer[parameter.layer] += bool(slices)
        self._left = list(self._of_layer)
        self._first = 0
        self._forgotten: set[int] = set()

    def forget(self, parameters: Iterable[int]) -> None:
        """These had no gradient in the first step, as fixed ones have none: wait for them never."""
        for parameter in set(parameters) - self._forgotten:
            self._forgotten.add(parameter)
            self._of_layer[self._layers[parameter]] -= 1
            self._left[self._layers[parameter]] -= 1
        self._move()

    def passed(self, parameter: int) -> int | None:
        """One more parameter has its sum; where forward gets to by that, if further."""
        if parameter in self._forgotten:
            return None
        self._left[self._layers[parameter]] -= 1
        return self._move()

    def _move(self) -> int | None:
        before = self._first
        while self._first < len(self._left) and not self._left[self._first]:
            self._first += 1
        if self._first == before:
            return None
        reached = min(self._first, len(self._left) - 1)
        if self._first == len(self._left):
            self._left = list(self._of_layer)
            self._first = 0
        return reached


def _memory(plan: SlicePlan, shapes: Sequence[tuple[int, ...]]) -> tuple[list[Bytes], list[Array]]:
    """Every slice's payload, and every parameter's elements in them as an array of its shape."""
    layout = plan.layout()
    flats = {dtype: np.zeros(total, dtype) for dtype, total in layout.totals.items()}
    payloads = [
        flats[piece.dtype][start:][: piece.payload_numel].view(np.uint8)
        for piece, start in zip(plan.slices, layout.slices, strict=True)
    ]
    stages = [
        array_on(flats[parameter.dtype][start:][: parameter.numel].reshape(shape))
        for parameter, start, shape in zip(plan.parameters, layout.parameters, shapes, strict=True)
    ]
    return payloads, stages
