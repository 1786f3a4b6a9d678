"""What ranks must agree on before the first slice leaves. Collective: every rank calls."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from itertools import zip_longest
from pathlib import Path

from p3.engine import PlanMismatchError
from p3.rendezvous import Exchange
from p3_agent import client
from p3_shaper.bands import BandTable, default_table


class NoAgentWarning(UserWarning):
    """No p3-agent runs on this node: slices leave in order, but the kernel does not keep it."""


def agree_on_bands(exchange: Exchange, chosen: BandTable | None) -> BandTable:
    """The user's band table, else the agents', else the default one; the same on every rank.

    Raises PlanMismatchError when two nodes have different tables. Warns on a node without agent.
    """
    mine = chosen or _agents_bands()
    known: dict[BandTable, int] = {}
    for rank, table in enumerate(exchange(mine)):
        if isinstance(table, BandTable):
            known.setdefault(table, rank)
    if len(known) > 1:
        (one, first), (other, second), *_ = known.items()
        raise PlanMismatchError(
            f"rank {first} has bands with DSCPs {one.dscps}, rank {second} {other.dscps}: "
            "give every node's p3-agent the same bands"
        )
    return next(iter(known), default_table())


def _agents_bands() -> BandTable | None:
    reason = "no p3-agent answers on this node"
    try:
        bands = client.bands()
    except client.ControlError as error:
        bands, reason = None, str(error)
    if bands is None:
        warnings.warn(
            f"{reason}: training goes on, but the network will not "
            "put urgent slices first; start `p3-agent run` here as root",
            NoAgentWarning,
            stacklevel=3,
        )
    return bands


def announce_job(name: str) -> client.Registration | None:
    """Have this node's agent, if there is one, tell of this process as one of job `name`.

    It is told with torchrun's --rdzv-id before it, if that was given, else with the program's
    name. Closing what is returned ends that, and so does the end of the process.
    """
    run = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    whose = Path(sys.argv[0]).stem if run == "none" else run
    # What JobName allows.
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", whose).lstrip("._-")[:32]
    return client.announce(f"{plain or 'training'}:{name}")


def check_same(exchange: Exchange, mine: Mapping[str, Sequence[str]]) -> None:
    """PlanMismatchError on every rank, with what differs and where, unless all have `mine`.

    `mine` is, for each thing that must be the same, what it is here, part by part.
    """
    everyone = [_things(rank, theirs) for rank, theirs in enumerate(exchange(dict(mine)))]
    for what, parts in everyone[0].items():
        different = [rank for rank, theirs in enumerate(everyone) if theirs.get(what) != parts]
        if different:
            rank = different[0]
            other, first = _first_difference(everyone[rank].get(what, ()), parts)
            raise PlanMismatchError(
                f"ranks {different} have a different {what} than rank 0: {other} on rank {rank}, "
                f"{first} on rank 0; it must be the same on every rank"
            )


def _things(rank: int, theirs: object) -> dict[str, Sequence[str]]:
    if not isinstance(theirs, dict):
        raise PlanMismatchError(
            f"rank {rank} says {type(theirs).__name__} where rank 0 says what must be the same: "
            "install the same release of P3 on all nodes"
        )
    return theirs


def _first_difference(theirs: Sequence[str], first: Sequence[str]) -> tuple[str, str]:
    pairs = zip_longest(theirs, first, fillvalue="nothing more")
    return next((one, other) for one, other in pairs if one != other)


def release() -> str:
    """P3's, as installed here."""
    return version("p3-transport")
