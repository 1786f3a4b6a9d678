"""What a user may ask for: values that can never work are refused before any rank waits for it."""

from __future__ import annotations

from torch import nn
from torch.optim import Optimizer

from p3.engine import Network, P3Error
from p3.interfaces import addresses_of


def check_arguments(
    model: object,
    optimizer: object,
    slice_numel: int | None,
    port_buffer: int,
    network: Network,
) -> None:
    """P3Error, with what to give in its place, for what `distribute` cannot work with."""
    if not isinstance(model, nn.Module):
        raise P3Error(f"the model is {_kind(model)}: give a torch.nn.Module")
    if not isinstance(optimizer, Optimizer):
        raise P3Error(
            f"the optimizer is {_kind(optimizer)}: give one of torch.optim, made from "
            "model.parameters()"
        )
    if slice_numel is not None and slice_numel < 1:
        raise P3Error(
            f"slice_numel={slice_numel}: give the most elements in a slice, 1 or more, or leave it "
            "out"
        )
    if port_buffer < 0:
        raise P3Error(
            f"port_buffer={port_buffer}: give the bytes that the switch port in front of a node "
            "holds, or 0 for no limit"
        )
    if not network.timeout >= 1:
        raise P3Error(
            f"timeout={network.timeout}: give the seconds that a rank may be silent, 1 or more"
        )
    if network.interface is not None:
        try:
            addresses_of(network.interface)
        except OSError as error:
            raise P3Error(f"interface={network.interface!r}: {error}") from error


def _kind(thing: object) -> str:
    return f"of type {type(thing).__name__}"
