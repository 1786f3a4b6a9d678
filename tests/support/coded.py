"""What a rank does in the tests of codecs in the engine `ps`."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from support.scenarios import batches, digest, distance, joint, network, train
from torch.optim import SGD

import p3
from p3.codecs import CODECS
from p3.engine import P3Error
from p3_shaper.bands import default_table

STEPS = 5


def _trained(codec: str, steps: int) -> dict[str, Any]:
    model = network()
    model, optimizer = p3.pytorch.distribute(
        model, SGD(model.parameters(), lr=0.1), bands=default_table(), codec=codec
    )
    first = batches(dist.get_rank(), 1)
    losses = train(model, optimizer, first * steps)
    optimizer.synchronize()
    assert optimizer.engine is not None
    sent = optimizer.engine.statistics().payload_bytes_sent
    optimizer.close()
    alone = network()
    train(alone, SGD(alone.parameters(), lr=0.1), joint(1) * steps)
    return {
        "digest": digest(model),
        "losses": [losses[0], losses[-1]],
        "sent": sent / steps,
        "distance": distance(model, alone),
    }


def every_codec() -> dict[str, Any]:
    """Training on one batch over and over, by codec."""
    names = ("none", *CODECS)
    return {name: _trained(name, 40 if name == "topk" else STEPS) for name in names}


def refused_codecs() -> dict[str, str]:
    """What distribute() says where a codec cannot be."""
    said = {}
    for name, options in {
        "unknown": {"codec": "zip"},
        "groups": {"codec": "fp16", "engine": "groups"},
        "update": {"codec": "fp16", "update": "server"},
    }.items():
        model = network()
        try:
            p3.pytorch.distribute(model, SGD(model.parameters(), lr=0.1), **options)  # type: ignore[arg-type]
        except P3Error as error:
            said[name] = str(error)
    return said


SCENARIOS = {function.__name__: function for function in (every_codec, refused_codecs)}
