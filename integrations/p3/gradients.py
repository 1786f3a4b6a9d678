"""What the user finds in `.grad`, and what of it counts at step().

Trained parameters get a class of their own. Its `.grad` is this rank's sum until a backward pass
has sent it, and from then on the average over ranks: looking waits for it. What `.grad` holds at
step() is what is applied, so that clipping, unscaling and assigning work as in one process.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from inspect import unwrap
from types import CodeType
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from p3.engine import P3Error
from p3.exchange import Exchange
from p3.updater import GRAD, Settings, own_gradient

in_backward = torch._C._current_graph_task_id
"""The number of the backward pass that this thread runs; -1 outside of one (private in torch, as
no public function says it)."""


class OverlapWarning(UserWarning):
    """The training loop waits for the network where P3 could have hidden it; results are right."""


READ = (
    "`.grad` was read after a backward pass (clip_grad_norm_, GradScaler and logging do): it waits "
    "until every rank's gradients are averaged, so that sending overlaps with the backward pass "
    "but no longer with the next forward pass; and step() then waits for the update"
)
SENT_AGAIN = (
    "a second backward pass before step() sends all gradients again; run all but the last pass "
    "of an iteration under p3.pytorch.no_sync(optimizer)"
)

_CLEARING: frozenset[CodeType] = frozenset(
    unwrap(function).__code__ for function in (nn.Module.zero_grad, Optimizer.zero_grad)
)
"""Whose looking at `.grad` needs no average: they only ask what there is to clear."""


class TrainedParameter(nn.Parameter):
    """A parameter while P3 trains it. Copies and pickles of it are plain parameters.

    Not constructed: `Gradients` gives this class to parameters that exist, as torch's lazy
    modules do.
    """

    _p3: tuple[Gradients, int]

    @property
    def grad(self) -> Tensor | None:
        """See torch.Tensor.grad. Raises the P3Error that ended the exchange."""
        gradients, number = self._p3
        if number in gradients.unseen:
            gradients.look(number, clearing=sys._getframe(1).f_code in _CLEARING)
        return GRAD.__get__(self)

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        GRAD.__set__(self, value)
        gradients, number = self._p3
        gradients.assigned(number)

    @grad.deleter
    def grad(self) -> None:
        self.grad = None

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Parameter:
        if id(self) not in memo:
            memo[id(self)] = nn.Parameter(self._settled().clone(), self.requires_grad)
        copied: nn.Parameter = memo[id(self)]
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        plain = nn.Parameter(self._settled(), self.requires_grad)
        plain.__dict__.update({key: value for key, value in vars(self).items() if key != "_p3"})
        return plain.__reduce_ex__(protocol)  # type: ignore[no-untyped-call]

    def __repr__(self) -> str:  # type: ignore[override]
        return repr(nn.Parameter(self._settled(), self.requires_grad))

    def _settled(self) -> Tensor:
        gradients, number = self._p3
        gradients.settle(number)
        return self.data


class Gradients:
    """One model's `.grad`s. The training thread's own.

    An iteration's gradients may be sent more than once, and then the last time counts: `.grad`
    holds all that was accumulated.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._parameters = tuple(parameters)
        self._exchange: Exchange | None = None
        self.unseen: set[int] = set()
        """Parameters whose `.grad` does not show the average that was or will be made of it."""
        self._kept: set[int] = set()  # whose `.grad` is applied as it is
        self._late = False  # whether `.grad` has grown since it was sent
        self._told: set[str] = set()
        for number, parameter in enumerate(parameters):
            cast(TrainedParameter, parameter)._p3 = (self, number)
            become(parameter, TrainedParameter)

    def open(self, exchange: Exchange) -> None:
        """The first gradient is there: from here on `exchange` moves them."""
        self._exchange = exchange

    def begin(self) -> None:
        """A backward pass that sends begins."""
        if self._opened.has_uncommitted:
            self._tell(SENT_AGAIN)
            self._opened.commit(None)
        self._restart()

    def accumulated(self, number: int) -> None:
        """A backward pass that does not send added to parameter `number`."""
        self._late = True
        if self._exchange is None or not self._exchange.has_uncommitted:
            self.unseen.discard(number)

    def commit(self, settings: Sequence[Settings]) -> None:
        """The user's step(): what `.grad` holds, averaged if it is not yet, is applied."""
        self._send_what_is_late()
        kept = {number: own_gradient(self._parameters[number]) for number in self._kept}
        self._kept.clear()
        self._late = False
        self._opened.commit(settings, kept)

    def drop(self) -> None:
        """All `.grad`s are about to be cleared: forget what no step() followed."""
        if self._exchange is not None and self._exchange.has_uncommitted:
            self._exchange.commit(None)
        self.forget()

    def forget(self) -> None:
        """`.grad`s are what they are."""
        self.unseen.clear()
        self._kept.clear()
        self._late = False

    def look(self, number: int, *, clearing: bool) -> None:
        """Someone reads the `.grad` of parameter `number`, which is in `unseen`."""
        # A hook of the user's, in the middle of a pass: what is there is this rank's.
        if in_backward() != -1:
            return
        exchange = self._opened
        if clearing:
            if exchange.has_uncommitted:
                self._kept.add(number)
        else:
            self._check_averages()
            self._tell(READ)
            self._show(number, exchange)
        self.unseen.discard(number)

    def assigned(self, number: int) -> None:
        """The user put something into the `.grad` of parameter `number`."""
        if in_backward() == -1:
            self.unseen.discard(number)
            if self._exchange is not None and self._exchange.has_uncommitted:
                self._check_averages()
                self._kept.add(number)

    def settle(self, number: int) -> None:
        """Wait until every committed update of parameter `number` is applied."""
        if self._exchange is not None:
            self._exchange.wait((number,))

    def close(self) -> None:
        """Make the parameters plain again; `.grad` is what it is."""
        self.unseen.clear()
        for parameter in self._parameters:
            if isinstance(parameter, TrainedParameter):
                del parameter._p3
                become(parameter, nn.Parameter)

    @property
    def _opened(self) -> Exchange:
        assert self._exchange is not None
        return self._exchange

    def _check_averages(self) -> None:
        if not self._opened.updater.has_averages:
            raise P3Error(
                'update="server" brings parameters back, not averaged gradients, so that `.grad` '
                "cannot be read or changed between backward() and zero_grad() (clipping and "
                'GradScaler do): use update="worker"'
            )

    def _restart(self) -> None:
        self.unseen.update(self._opened.parameters)
        self._kept.clear()
        self._late = False

    def _send_what_is_late(self) -> None:
        # The round begun has less than `.grad`. The next one takes it from there.
        if self._late and self._opened.has_uncommitted:
            self._tell(SENT_AGAIN)
            self._opened.commit(None)
            self._restart()

    def _show(self, number: int, exchange: Exchange) -> None:
        """Put the average into `.grad`: into the same memory, as DistributedDataParallel does."""
        if exchange.has_uncommitted:
            self._send_what_is_late()
            average = exchange.average(number)
            self._kept.add(number)
        else:
            average = exchange.last_average(number)
        if average is None:
            return
        parameter = self._parameters[number]
        own = own_gradient(parameter)
        with torch.no_grad():
            if own is None or own.layout is not average.layout:
                GRAD.__set__(parameter, average.to(parameter, copy=True))
            else:
                own.copy_(average)

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            warnings.warn(text, OverlapWarning, stacklevel=4)


def become(parameter: nn.Parameter, kind: type[nn.Parameter]) -> None:
    """Change a parameter's class; its memory and its place in the model and optimizer stay."""
    parameter.__class__ = kind


def refuse_others(name: str, parameter: nn.Parameter) -> None:
    """P3Error unless P3 can train `parameter`: a plain one, and not trained by P3 already."""
    if type(parameter) is TrainedParameter:
        raise P3Error(
            f"{name} is already distributed: close() the optimizer that distribute() returned "
            "before, or give each optimizer its own parameters"
        )
    if type(parameter) is not nn.Parameter:
        raise P3Error(
            f"{name} is a {type(parameter).__name__}: P3 trains plain torch.nn.Parameter only"
        )
