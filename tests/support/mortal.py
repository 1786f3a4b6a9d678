"""Forks ranks that train until they hear of an error; see `nursery`, whose other end this is.

Every rank prints a line an iteration, then the error, then which threads of P3 are left.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch._dynamo  # else each rank would load it
import torch.distributed as dist
from support.scenarios import OPTIMIZERS, batches, network, train

import p3
from p3.engine import Network, P3Error
from p3_shaper.bands import default_table
from p3_shaper.namespace import enter

REQUEST_BYTES = 1 << 16


def main() -> None:
    torch.set_num_threads(1)
    mother = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel forgets those that end
    while True:
        text, descriptors, _, _ = socket.recv_fds(mother, REQUEST_BYTES, 1)
        if not text:
            mother.close()
            return
        pid = os.fork()
        if pid == 0:
            mother.close()
            os.dup2(descriptors[0], 1)
            os.close(descriptors[0])
            _child(json.loads(text))
        os.close(descriptors[0])
        mother.send(str(pid).encode())


def _child(request: dict[str, Any]) -> NoReturn:
    """Ends as a process does, but without taking apart what its mother had loaded: seconds."""
    try:
        with suppress(KeyboardInterrupt):
            _live(request)
    finally:
        if sys.exc_info()[0] is not None:
            traceback.print_exc()
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(0)


def _live(request: dict[str, Any]) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # A shell that starts tests in the background has them ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.update(request["environment"])
    if request["namespace"] is not None:
        enter(request["namespace"])
    story, *arguments = request["story"]
    try:
        STORIES[story](*arguments)
    except P3Error as error:
        print(f"{type(error).__name__}: {error}", flush=True)
    print("left:", *(t.name for t in threading.enumerate() if t.name.startswith("p3")), flush=True)


def training(
    engine: str,
    timeout: float = Network.timeout,
    servers: Sequence[int] = (),
    update: str = "worker",
    interface: str | None = None,
) -> None:
    """Train until an error; ranks beyond the workers serve."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    workers = min(size, *servers) if servers and max(servers) == size - 1 else size
    if rank >= workers:
        p3.pytorch.serve(interface=interface)
        return
    dist.init_process_group("gloo", rank=rank, world_size=workers)
    model = network()
    model, optimizer = p3.pytorch.distribute(
        model,
        OPTIMIZERS["sgd"](model),
        engine=engine,  # type: ignore[arg-type]
        slice_numel=1000,
        bands=default_table(),
        servers=servers,
        update=update,  # type: ignore[arg-type]
        timeout=timeout,
        interface=interface,
    )
    data = batches(rank, steps=1)
    try:
        while True:
            train(model, optimizer, data)
            print(f"trained {'.' * 1000}", flush=True)
    except P3Error:
        optimizer.close()
        raise


STORIES: dict[str, Callable[..., None]] = {"training": training}


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    main()
