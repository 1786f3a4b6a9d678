"""What workers tell servers with every step(), and when a server has heard all of them. Pure.

With `update="server"` a slice's sum may be complete before step() is called; the learning rate at
that call counts. So each worker tells each server of each step(): the settings, and of which
parameters it had no gradient. A server applies a sum when all have: none of them can then be in
an earlier iteration, which makes what a worker fetches between two iterations one state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

Value = bool | int | float | str | tuple[float, ...] | None
"""A hyperparameter: what the settings of torch's element-wise optimizers are made of."""

Groups = tuple[dict[str, Value], ...]


class CommitError(ValueError):
    """A commit that cannot be right; the message says whose, and why."""


class SettingsError(ValueError):
    """Workers call step() with different settings; the message names them and the setting."""


class Commit(msgspec.Struct, frozen=True, array_like=True):
    """One worker's step(): settings by parameter group, or None when it drops its gradients.

    No settings, (), are those of a worker that is through and does as the others do. `absent` are
    the parameters of which it had no gradient.
    """

    groups: Groups | None
    absent: tuple[int, ...] = ()

    @property
    def follows(self) -> bool:
        """Whether others decide."""
        return self.groups == ()


def encode(commit: Commit) -> bytes:
    """MessagePack."""
    return msgspec.msgpack.encode(commit)


def decode(data: bytes | memoryview) -> Commit:
    """CommitError when it is none."""
    try:
        return msgspec.msgpack.decode(data, type=Commit)
    except msgspec.MsgspecError as error:
        raise CommitError(f"no commit: {error}") from error


@dataclass(slots=True)
class Commits:
    """The commits of `workers` workers, numbered from 0, as one server hears them."""

    workers: int
    _open: dict[int, dict[int, Commit]] = field(default_factory=dict)
    _agreed: dict[int, Commit] = field(default_factory=dict)
    _last: int = -1

    def add(self, worker: int, iteration: int, commit: Commit) -> bool:
        """Whether that was the last one of `iteration`.

        CommitError for one out of turn, SettingsError when it differs from another worker's.
        """
        here = self._open.setdefault(iteration, {})
        # A worker may be one step() ahead of the others, not two: it needs their sums.
        if not self._last < iteration <= self._last + 2 or worker in here:
            raise CommitError(
                f"rank {worker} steps in iteration {iteration}, which is in {self._last + 1}"
            )
        leading = ((other, theirs) for other, theirs in here.items() if not theirs.follows)
        if not commit.follows and (first := next(leading, None)):
            _check_same(*first, worker, commit)
        here[worker] = commit
        if len(here) < self.workers:
            return False
        absent = set.intersection(*(set(one.absent) for one in here.values()))
        # All are through: there is nothing to apply.
        groups = next((one.groups for one in here.values() if not one.follows), None)
        self._agreed = {iteration: Commit(groups, tuple(sorted(absent)))}
        self._last = iteration
        del self._open[iteration]
        return True

    def agreed(self, iteration: int) -> Commit | None:
        """What to do in `iteration`, if all workers have told and none has told of a later one."""
        return self._agreed.get(iteration)

    def waits_for(self, worker: int) -> int | None:
        """An iteration in which others have stepped and `worker` has not, if there is one."""
        return next((k for k, here in self._open.items() if worker not in here), None)


def _check_same(first: int, one: Commit, second: int, other: Commit) -> None:
    if one.groups == other.groups:
        return
    if one.groups is None or other.groups is None:
        stepping, dropping = (second, first) if one.groups is None else (first, second)
        raise SettingsError(
            f"rank {stepping} calls step() where rank {dropping} calls zero_grad() and drops its "
            "gradients: do the same on every rank"
        )
    where = _difference(one.groups, other.groups)
    raise SettingsError(
        f"rank {first} and rank {second} call step() with different settings ({where}): give "
        "every rank's optimizer and scheduler the same"
    )


def _difference(one: Sequence[Mapping[str, Value]], other: Sequence[Mapping[str, Value]]) -> str:
    for number, (mine, theirs) in enumerate(zip(one, other, strict=False)):
        for key in sorted({*mine, *theirs}):
            if mine.get(key) != theirs.get(key):
                return f"group {number}: {key} {mine.get(key)} and {theirs.get(key)}"
    return f"{len(one)} and {len(other)} parameter groups"
