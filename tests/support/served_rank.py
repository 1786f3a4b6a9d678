"""One rank of a job with servers of their own: served_rank.py WORKERS.

The first WORKERS ranks run scenarios as rank.py does, the others serve.
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from support import rank

import p3


def main() -> None:
    torch.set_num_threads(1)
    workers, mine = int(sys.argv[1]), int(os.environ["RANK"])
    if mine >= workers:
        p3.pytorch.serve()
        return
    dist.init_process_group("gloo", rank=mine, world_size=workers)
    rank.run_scenarios()


if __name__ == "__main__":
    main()
