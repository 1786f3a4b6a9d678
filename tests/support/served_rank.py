"""One rank of a job with servers of their own: served_rank.py WORKERS [train].

The first WORKERS ranks run scenarios as rank.py does, or train until they hear of an error; the
others serve.
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from support import mortal, rank

import p3


def main() -> None:
    torch.set_num_threads(1)
    workers, mine = int(sys.argv[1]), int(os.environ["RANK"])
    if mine >= workers:
        try:
            p3.pytorch.serve()
        except p3.pytorch.P3Error as error:
            print(f"{type(error).__name__}: {error}", flush=True)
        return
    dist.init_process_group("gloo", rank=mine, world_size=workers)
    if sys.argv[2:] == ["train"]:
        mortal.train_until_an_error("ps", servers=range(workers, int(os.environ["WORLD_SIZE"])))
    else:
        rank.run_scenarios()


if __name__ == "__main__":
    main()
