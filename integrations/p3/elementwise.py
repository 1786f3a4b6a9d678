"""Which optimizers may be applied to any run of a parameter's elements by itself."""

from __future__ import annotations

from torch import optim
from torch.optim import Optimizer

from p3.engine import P3Error

ELEMENT_WISE: tuple[type[Optimizer], ...] = (
    optim.SGD,
    optim.Adam,
    optim.AdamW,
    optim.NAdam,
    optim.RAdam,
    optim.Adamax,
    optim.Adagrad,
    optim.Adadelta,
    optim.RMSprop,
    optim.Rprop,
    optim.ASGD,
)
"""Each element's new value depends on that element alone, its gradient, and numbers that are the
same for the whole parameter (the count of steps and what follows from it): torch/optim/, the
functions `_single_tensor_*`."""

_WHOLE = {
    "LBFGS": "it searches along a direction made of all parameters together",
    "Adafactor": "it keeps sums of a matrix's rows and columns, and clips by the whole's size",
    "Muon": "it makes whole matrices orthogonal",
    "SparseAdam": "it takes sparse gradients, and slices are dense",
}


def why_not_element_wise(optimizer: Optimizer) -> str:
    """The reason for which a server that holds a part of a parameter cannot apply `optimizer`.

    Empty if it can. A subclass may do anything, so that only torch's own classes are taken.
    """
    kind = type(optimizer)
    if kind not in ELEMENT_WISE:
        return _WHOLE.get(kind.__name__, "p3 does not know whether it works element by element")
    if any(group.get("differentiable") for group in optimizer.param_groups):
        return "differentiable=True keeps what autograd needs on this rank"
    if any(tensor.is_complex() for group in optimizer.param_groups for tensor in group["params"]):
        return "slices of complex parameters are pairs of real numbers"
    return ""


def check_update(update: str, optimizer: Optimizer) -> bool:
    """Whether servers are to update. P3Error where they cannot, or for an unknown `update`."""
    if update == "worker":
        return False
    if update != "server":
        raise P3Error(f'update={update!r} is unknown: choose "worker" or "server"')
    if reason := why_not_element_wise(optimizer):
        raise P3Error(
            f'update="server" cannot be with {type(optimizer).__name__}: {reason}; use '
            'update="worker"'
        )
    return True
