"""Sums of gradients as operations of MXNet's dependency engine.

MXNet copies a gradient into P3's payload and then begins our operation on it; the operation ends
when the sum is there. Whatever reads the sum waits for that in MXNet's engine, and nothing else
waits: not the program, not backward, not another layer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

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
        stage = self._stages[parameter]
        gradient.copyto(stage)
        if self._slices_of[parameter]:
            self._operations.push(parameter, stage)
        return stage

    def layers(self) -> list[int]:
        """Each parameter's place in forward order."""
        return [parameter.layer for parameter in self._plan.parameters]

    def close(self, error: P3Error | None = None) -> None:
        """Release the engine. What is under way fails with `error`."""
        if error is not None:
            self._fail(error)
        self._engine.close()
        self._fail(P3Error("the store dist_p3 is closed"))

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
                    reached = self._front.passed(self._plan.parameters[parameter].layer)
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
        self._of_layer = [0] * plan.layers
        for parameter, slices in zip(plan.parameters, plan.slices_of(), strict=True):
            self._of_layer[parameter.layer] += bool(slices)
        self._left = list(self._of_layer)
        self._first = 0

    def passed(self, layer: int) -> int | None:
        """One more parameter of `layer` has its sum; where forward gets to by that, if further."""
        before = self._first
        self._left[layer] -= 1
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
    totals: dict[str, int] = {}
    for piece in plan.slices:
        totals[piece.dtype] = totals.get(piece.dtype, 0) + piece.payload_numel
    flats = {dtype: np.zeros(total, dtype) for dtype, total in totals.items()}
    used = dict.fromkeys(flats, 0)
    payloads: list[Bytes] = []
    starts: dict[int, int] = {}
    for piece in plan.slices:
        start = used[piece.dtype]
        used[piece.dtype] += piece.payload_numel
        payloads.append(flats[piece.dtype][start : used[piece.dtype]].view(np.uint8))
        for segment in piece.segments:
            starts.setdefault(segment.parameter, start)
            start += segment.numel
    stages = []
    for number, (parameter, shape) in enumerate(zip(plan.parameters, shapes, strict=True)):
        flat = flats.get(parameter.dtype, np.zeros(0, parameter.dtype))
        elements = flat[starts.get(number, 0) :][: parameter.numel]
        stages.append(array_on(elements.reshape(shape)))
    return payloads, stages
