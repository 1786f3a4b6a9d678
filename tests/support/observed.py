"""What a rank does in the tests of what a user sees: statistics and the timeline."""

from __future__ import annotations

import copy
import json
import os
import pickle
import socket
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from support.scenarios import OPTIMIZERS, STEPS, batches, distribute, network, train
from torch import nn
from torch.optim import SGD

import p3
from p3.engines import EngineName
from p3.module_hooks import Update
from p3.pytorch import P3Error
from p3_agent.messages import MAX_REQUEST, SOCKET_VARIABLE, RegisterJob, decode_request
from p3_shaper.bands import default_table


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


def registration(agent: socket.socket) -> tuple[socket.socket, RegisterJob]:
    """The first connection that registers a job, after those that ask for other things."""
    while True:
        connection, _ = agent.accept()
        heard = decode_request(connection.recv(MAX_REQUEST))
        if isinstance(heard, RegisterJob):
            return connection, heard
        connection.close()


def statistics(engine: EngineName) -> dict[str, Any]:
    """Of a short training, and what an agent heard of it."""
    with mute_agent() as agent:
        model = network()
        model, optimizer = distribute(model, OPTIMIZERS["sgd"](model), engine)
        before = optimizer.stats()
        train(model, optimizer, batches(dist.get_rank()))
        connection, heard = registration(agent)
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
            "job": heard.name,
        }
        optimizer.close()
        result["left"] = connection.recv(1) == b""
        connection.close()
        return result


def timeline(engine: EngineName, update: Update, compiled: bool) -> dict[str, Any]:
    """What the file of a short training has: events of every rank, and what P3 counted."""
    with tempfile.TemporaryDirectory(prefix="p3t-") as directory:
        file = Path(directory) / "out.json"
        model = network()
        model, optimizer = p3.pytorch.distribute(
            model,
            OPTIMIZERS["sgd"](model),
            engine=engine,
            update=update,
            slice_numel=1000,
            bands=default_table(),
            trace=file,
        )
        called: nn.Module = model
        if compiled:
            called = torch.compile(model, backend="eager")  # type: ignore[assignment]
        with warnings.catch_warnings():
            # The compiler looks at every tensor's, where hooks break its graphs.
            warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf")
            train(called, optimizer, batches(dist.get_rank()))
        for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            copied(batches(dist.get_rank())[0][0])  # a plain model, which tells nothing
        optimizer.close()
        optimizer.close()
        moved = optimizer.engine
        assert moved is not None
        (written,) = Path(directory).iterdir()
        return {
            "file": written.name,
            "trace": json.loads(written.read_bytes()),
            "slices": moved.statistics().slices_done,
            "bands": len(moved.statistics().payload_bytes_by_band),
        }


def timeline_of_failure() -> dict[str, Any]:
    """What is written when training has ended with an error."""

    class Failing(SGD):
        def step(self, closure: Any = None) -> Any:  # noqa: ARG002
            raise ArithmeticError("no more numbers")

    with tempfile.TemporaryDirectory(prefix="p3t-") as directory:
        file = Path(directory) / "out.json"
        model = network()
        model, optimizer = p3.pytorch.distribute(
            model, Failing(model.parameters(), lr=0.1), bands=default_table(), trace=file
        )
        failed = False
        try:
            train(model, optimizer, batches(dist.get_rank()))
        except P3Error:
            failed = True
        optimizer.close()
        (written,) = Path(directory).iterdir()
        names = [event["name"] for event in json.loads(written.read_bytes())["traceEvents"]]
        return {"failed": failed, "slices": sum("weight" in name for name in names)}


def timeline_refused() -> dict[str, Any]:
    model = network()
    try:
        p3.pytorch.distribute(model, OPTIMIZERS["sgd"](model), trace="/nonexistent/out.json")
    except P3Error as error:
        return {"error": str(error)}
    return {}


SCENARIOS: dict[str, Callable[..., dict[str, Any]]] = {
    function.__name__: function
    for function in (statistics, timeline, timeline_of_failure, timeline_refused)
}
