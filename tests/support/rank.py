"""One rank of a test's process group: reads scenario names from stdin, answers with JSON lines.

RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are in the environment, as under torchrun.
"""

from __future__ import annotations

import json
import sys

import torch
import torch.distributed as dist
from support import (
    coded,
    compared,
    extremes,
    kinds,
    loops,
    models_in_use,
    normed,
    observed,
    scenarios,
    server_update,
    uneven,
)

SCENARIOS = {
    **scenarios.SCENARIOS,
    **observed.SCENARIOS,
    **server_update.SCENARIOS,
    **loops.SCENARIOS,
    **kinds.SCENARIOS,
    **models_in_use.SCENARIOS,
    **normed.SCENARIOS,
    **extremes.SCENARIOS,
    **uneven.SCENARIOS,
    **compared.SCENARIOS,
    **coded.SCENARIOS,
}


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    run_scenarios()


def run_scenarios() -> None:
    for line in sys.stdin:
        name, arguments = json.loads(line)
        print(json.dumps(SCENARIOS[name](*arguments)), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
