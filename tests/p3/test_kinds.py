"""Parameters and gradients of every dtype, shape and layout train as under DDP, or are refused."""

from __future__ import annotations

import pytest
from support.ranks import Ranks

TOLERANCE = 2e-5


@pytest.mark.parametrize(
    ("make", "engine", "update"),
    [
        ("adamw", "groups", "worker"),
        ("nesterov", "ps", "worker"),
        ("adamw", "ps", "server"),
    ],
)
def test_parameters_of_every_kind_end_with_the_bits_of_ddp(
    pair: Ranks, make: str, engine: str, update: str
) -> None:
    for result in pair.run("kinds", make, engine, update):
        assert result == {"same": True, "state": True, "strides": True}


@pytest.mark.parametrize(("make", "engine"), [("adagrad", "groups"), ("momentum", "ps")])
def test_sparse_gradients_travel_dense(pair: Ranks, make: str, engine: str) -> None:
    results = pair.run("sparse", make, engine)
    for result in results:
        assert result["distance"] < TOLERANCE
        assert result["off"] < TOLERANCE
        (text,) = result["told"]
        assert "0.weight is sparse" in text
    assert len({result["digest"] for result in results}) == 1


def test_what_cannot_be_trained_is_refused_with_a_sentence(pair: Ranks) -> None:
    for said in pair.run("untrainable"):
        assert "use Adam" in said["sparse_adam"]
        assert "1.weight has no shape yet" in said["lazy"]
        assert "make it from .contiguous()" in said["expanded"]
        assert "bfloat16 or wider" in said["eight_bits"]
        assert "on the meta device" in said["meta"]
        assert "1 is a SyncBatchNorm on the CPU" in said["sync_batch_norm"]
        # Of which DDP has the same opinion.
        assert "only work with GPU" in said["ddp"]
