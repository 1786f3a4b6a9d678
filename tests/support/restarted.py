"""Under torchrun: trains from its checkpoint on; worker 1 is killed once: restarted.py FOLDER.

Two workers and a server that updates. Worker 0 leaves in FOLDER/distance how far the parameters are
from those that one process gets, and in FOLDER/began where each start began.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from support.scenarios import (
    OPTIMIZERS,
    STEPS,
    batches,
    distance,
    distribute,
    joint,
    network,
    train,
)

import p3

WORKERS = 2
LAST = 2
"""The step after which worker 1 is killed, the first time."""


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    if rank >= WORKERS:
        p3.pytorch.serve()
        return
    dist.init_process_group("gloo", rank=rank, world_size=WORKERS)
    model = network()
    model, optimizer = distribute(
        model, OPTIMIZERS["adam"](model), "ps", servers=[WORKERS], update="server"
    )
    first = _load(folder / "checkpoint", model, optimizer)
    if rank == 0:
        with (folder / "began").open("a") as file:
            file.write(f"{first}\n")
    for step in range(first, STEPS):
        train(model, optimizer, batches(rank, STEPS)[step : step + 1])
        if rank == 0:
            _save(folder / "checkpoint", model, optimizer, step + 1)
        dist.barrier()
        if step == LAST and rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
    optimizer.synchronize()
    if rank == 0:
        alone = network()
        train(alone, OPTIMIZERS["adam"](alone), joint())
        (folder / "distance").write_text(str(distance(model, alone)))
    optimizer.close()
    dist.destroy_process_group()


def _load(path: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """The step to begin with."""
    if not path.exists():
        return 0
    saved = torch.load(path)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    step: int = saved["step"]
    return step


def _save(path: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    whole = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    torch.save(whole, path.with_suffix(".new"))
    path.with_suffix(".new").rename(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
