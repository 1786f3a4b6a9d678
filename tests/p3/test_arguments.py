"""Values that can never work are refused by distribute() itself, with what to give."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn
from torch.optim import SGD

import p3
from p3.engine import P3Error


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"slice_numel": 0}, "slice_numel=0: give the most elements"),
        ({"slice_numel": -5}, "slice_numel=-5: give the most elements"),
        ({"port_buffer": -1}, "port_buffer=-1: give the bytes"),
        ({"timeout": 0.5}, "timeout=0.5: give the seconds"),
        ({"timeout": float("nan")}, "timeout=nan: give the seconds"),
        (
            {"interface": "nope"},
            "interface='nope': there is no interface 'nope': choose one of .*lo",
        ),
        ({"model": [nn.Linear(2, 2)]}, "the model is of type list: give a torch.nn.Module"),
        ({"optimizer": None}, "the optimizer is of type NoneType: give one of torch.optim"),
        ({}, "torch.distributed is not initialised"),
    ],
)
def test_what_cannot_work_is_refused_at_once(given: dict[str, Any], reason: str) -> None:
    model = nn.Linear(2, 2)
    sound = {"model": model, "optimizer": SGD(model.parameters(), lr=0.1), "interface": "lo"}
    with pytest.raises(P3Error, match=reason):
        p3.pytorch.distribute(**{**sound, **given})
