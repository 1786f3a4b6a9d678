"""Which kernel kinds to use, and why. Pure: what the user asked for and what is there, in."""

from __future__ import annotations

from dataclasses import dataclass

from p3_agent.config import AskedMode, Mode
from p3_agent.errors import AgentError
from p3_shaper.rates import Rate
from p3_shaper.tree import HTB_BANDS

HTB_SOFTWARE_LIMIT = Rate(16 * 10**9)
"""About what one core drives through HTB's one lock; measured with few, large GSO flows."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What the user asked for: `rate` is None if none was named."""

    mode: AskedMode
    rate: Rate | None
    bands: int


@dataclass(frozen=True, slots=True)
class Means:
    """What is there: `speed` is None when unknown or merely nominal, `kinds` are qdisc names.

    `holds_queue` is whether packets wait in the device without a rate (see `stacking`).
    """

    device: str
    speed: Rate | None
    kinds: frozenset[str]
    holds_queue: bool = True


@dataclass(frozen=True, slots=True)
class Choice:
    """The mode, its rate (None in mode prio), and why, in words."""

    mode: Mode
    rate: Rate | None
    reason: str


def choose(wish: Wish, means: Means) -> Choice:
    """Follow the wish, or choose for `auto`; AgentError says what is missing and what to do."""
    match wish.mode:
        case "auto":
            return _automatic(wish, means)
        case "prio" | "ets" | "mq+prio":
            if wish.rate is not None:
                raise AgentError(
                    f"mode {wish.mode} holds no rate, and {wish.rate} was asked for: "
                    "leave --rate out, or choose --mode htb+prio"
                )
            _need(means, wish.mode.removeprefix("mq+"))
            return Choice(wish.mode, None, "as asked")
        case "htb" | "mq+htb":
            _need(means, "htb")
            return _shaped(wish.mode, wish, means, "as asked")
        case "htb+prio":
            _need(means, "htb", "prio")
            return _shaped("htb+prio", wish, means, "as asked")


def _automatic(wish: Wish, means: Means) -> Choice:
    if wish.rate is None:
        why = _why_no_rate(means)
        if why is not None:
            if "prio" in means.kinds and means.holds_queue:
                return Choice("prio", None, f"no rate was given and {why}")
            raise AgentError(
                f"{means.device}: no rate was given, {why}, and {_why_no_prio(means)}: "
                "give --rate, a little under the bottleneck's, on a kernel with sch_htb"
            )
    _need(means, "htb")
    if wish.bands <= HTB_BANDS:
        return _shaped("htb", wish, means, "every band has its guarantee")
    if "prio" not in means.kinds:
        raise AgentError(
            f"{wish.bands} bands are more than the {HTB_BANDS} that htb can order, and this "
            f"kernel has no sch_prio: choose --bands {HTB_BANDS} or fewer"
        )
    return _shaped("htb+prio", wish, means, f"htb alone orders {HTB_BANDS} bands")


def _why_no_rate(means: Means) -> str | None:
    """Why the link's own speed is no rate to shape at, or None if it is one."""
    if means.speed is None:
        return "the link's own speed is unknown"
    if "htb" not in means.kinds:
        return "this kernel has no sch_htb"
    if means.speed > HTB_SOFTWARE_LIMIT and "prio" in means.kinds and means.holds_queue:
        return f"htb in software would not reach the link's {means.speed}"
    return None


def _why_no_prio(means: Means) -> str:
    """Why the bands cannot do without a rate."""
    if "prio" not in means.kinds:
        return "this kernel has no sch_prio to do without"
    return "nothing waits in such a device without one"


def _shaped(mode: Mode, wish: Wish, means: Means, why: str) -> Choice:
    if wish.rate is not None:
        return Choice(mode, wish.rate, f"{why}; {wish.rate} was asked for")
    if means.speed is not None:
        return Choice(mode, means.speed, f"{why}; {means.speed} is the link's speed")
    raise AgentError(
        f"{means.device}: mode {mode} needs a rate, and the link's own speed is unknown: "
        "give --rate, a little under the bottleneck's"
    )


def _need(means: Means, *kinds: str) -> None:
    for kind in kinds:
        if kind not in means.kinds:
            raise AgentError(missing(kind))


def missing(kind: str) -> str:
    """What to say when the kernel lacks a kind."""
    module = (
        f"act_{kind}" if kind == "mirred" else f"cls_{kind}" if kind == "u32" else f"sch_{kind}"
    )
    return (
        f"this kernel has no {module}: load it (modprobe {module}), "
        "boot a kernel that has it, or choose another --mode"
    )
