"""An engine that p3 does not know: plain all-reduces, one after the other, in a thread."""

from __future__ import annotations

import queue
import threading

import torch.distributed as dist

from p3.engine import EngineStatistics, Job
from p3.engines import EngineKind, EngineOptions
from p3.tensors import tensor_of


class PlainAllReduce:
    """See `engine.Engine`. Ranks hand slices over in one order here, so that nothing sorts them."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._group = dist.new_group()
        self._handed_over: queue.Queue[int | None] = queue.Queue()
        self._done = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def submit(self, index: int, iteration: int) -> None:  # noqa: ARG002
        self._handed_over.put(index)

    def advance(self, position: int) -> None:
        pass

    def statistics(self) -> EngineStatistics:
        return EngineStatistics((), self._done)

    def close(self) -> None:
        self._handed_over.put(None)
        self._thread.join()
        dist.destroy_process_group(self._group)

    def _run(self) -> None:
        while (index := self._handed_over.get()) is not None:
            payload = tensor_of(self._job.payloads[index], self._job.plan.slices[index].dtype)
            dist.all_reduce(payload, group=self._group)
            self._done += 1
            self._job.on_done(index)


def _open(job: Job, _: EngineOptions) -> PlainAllReduce:
    return PlainAllReduce(job)


PLAIN = EngineKind("plain", 500, _open)
