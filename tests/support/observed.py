"""What a rank does in the tests of what a user sees: statistics and the timeline."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch.distributed as dist
from support.scenarios import OPTIMIZERS, STEPS, batches, distribute, network, train

from p3.engines import EngineName
from p3_agent.messages import MAX_REQUEST, SOCKET_VARIABLE, RegisterJob, decode_request


@contextmanager
def mute_agent() -> Iterator[socket.socket]:
    """A control socket at which nobody answers; what connects there can be accepted."""
    with (
        tempfile.TemporaryDirectory(prefix="p3t-") as directory,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener,
    ):
        before, path = os.environ[SOCKET_VARIABLE], Path(directory) / "control.sock"
        listener.bind(str(path))
        listener.listen()
        os.environ[SOCKET_VARIABLE] = str(path)
        try:
            yield listener
        finally:
            os.environ[SOCKET_VARIABLE] = before


def statistics(engine: EngineName) -> dict[str, Any]:
    """Of a short training, and what an agent heard of it."""
    with mute_agent() as agent:
        model = network()
        model, optimizer = distribute(model, OPTIMIZERS["sgd"](model), engine)
        before = optimizer.stats()
        train(model, optimizer, batches(dist.get_rank()))
        connection, _ = agent.accept()
        heard = decode_request(connection.recv(MAX_REQUEST))
        optimizer.synchronize()
        stats = optimizer.stats()
        moved = optimizer.engine
        assert moved is not None
        result = {
            "untouched": before == type(before)(),
            "steps": STEPS,
            "iterations": stats.iterations,
            "layers": list(stats.waited_by_layer),
            "waits": [*stats.waited_by_layer.values(), stats.waited_elsewhere_s],
            "waited_s": stats.waited_s,
            "communication_s": stats.communication_s,
            "overlap": stats.overlap,
            "bytes_by_band": list(stats.payload_bytes_by_band),
            "bytes": moved.statistics().payload_bytes_sent,
            "job": heard.name if isinstance(heard, RegisterJob) else "",
        }
        optimizer.close()
        result["left"] = connection.recv(1) == b""
        connection.close()
        return result


SCENARIOS: dict[str, Callable[..., dict[str, Any]]] = {"statistics": statistics}
