"""The agent's settings: a TOML file, then the command line over it, checked into one value."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from p3_agent.errors import AgentError, UsageError
from p3_agent.messages import socket_path
from p3_shaper.bands import DEFAULT_DSCPS, UNMARKED_SHARE, BandError, BandTable
from p3_shaper.rates import Rate, RateError, parse_rate

DEFAULT_STATE_DIR = "/var/lib/p3-agent"
DEFAULT_GROUP = "p3"
DEFAULT_RECONCILE_S = 30.0
_FIXED = ("device", "takeover", "socket", "state_dir", "metrics")

Mode = Literal["htb", "prio", "htb+prio", "ets", "mq+htb", "mq+prio"]
AskedMode = Literal["auto", "htb", "prio", "htb+prio", "ets", "mq+htb", "mq+prio"]


@dataclass(frozen=True, slots=True)
class UnixAddress:
    """A unix socket's path."""

    path: Path

    def __str__(self) -> str:
        return f"unix:{self.path}"


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """A host (a name, or an address of either family) and a port; 0: any that is free."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


_Text = Annotated[str, msgspec.Meta(pattern=r"\A[^\x00]+\Z")]
"""What may be a path or a name: the system knows none with a zero byte."""


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a config file, or a command line, may say; None where it says nothing.

    The fields are the file's keys: `device`, `rate` ("10gbit"), `bands` (how many), `mode`,
    `takeover`, `socket`, `state_dir`, `dscps` (one a band, most urgent first), `force_dscps`
    (allow risky code points), `unmarked_share` (part of 1), `guarantee` (a rate, each band's, in
    mode htb), `group` (may write on the socket), `reconcile_s` (seconds between checks when
    nothing was heard from the kernel), `metrics` ("unix:PATH" or "HOST:PORT", for Prometheus).
    """

    device: str | None = None
    rate: str | None = None
    bands: int | None = None
    mode: AskedMode | None = None
    takeover: bool | None = None
    socket: _Text | None = None
    state_dir: _Text | None = None
    dscps: Annotated[tuple[int, ...], msgspec.Meta(max_length=64)] | None = None
    force_dscps: bool | None = None
    unmarked_share: float | None = None
    guarantee: str | None = None
    group: _Text | None = None
    reconcile_s: Annotated[float, msgspec.Meta(gt=0, le=3600)] | None = None
    metrics: _Text | None = None

    def over(self, below: Options) -> Options:
        """These options, and `below`'s where these say nothing."""
        said = {
            key: value for key, value in msgspec.structs.asdict(self).items() if value is not None
        }
        return msgspec.structs.replace(below, **said)


@dataclass(frozen=True, slots=True)
class Settings:
    """What an agent runs with. `rate` and `guarantee` are None when the user named none.

    `metrics` is where Prometheus may ask, None for nowhere.
    """

    device: str
    rate: Rate | None
    guarantee: Rate | None
    table: BandTable
    mode: AskedMode
    takeover: bool
    socket: Path
    state_dir: Path
    group: str
    reconcile_s: float
    metrics: UnixAddress | TcpAddress | None = None


def read_file(path: Path) -> Options:
    """A config file's options; AgentError names the file and what is wrong in it."""
    try:
        with path.open("rb") as file:
            document = tomllib.load(file)
    except OSError as error:
        reason = error.strerror or error
        raise AgentError(f"cannot read the config {path}: {reason}; name another file") from error
    except (ValueError, RecursionError) as error:  # not UTF-8, too deep or too many digits, too
        raise UsageError(f"the config {path} is not TOML: {error}; mend it there") from error
    try:
        return msgspec.convert(document, Options)
    except (msgspec.ValidationError, OverflowError) as error:
        raise UsageError(f"the config {path} cannot be used: {error}; mend it there") from error


def settings(options: Options) -> Settings:
    """Complete and check; AgentError for a missing device, a bad rate or a bad band table."""
    if options.device is None:
        raise UsageError("no interface named: give --dev, or `device` in the config file")
    return Settings(
        device=_device(options.device),
        rate=None if options.rate is None else rate_of(options.rate),
        guarantee=None if options.guarantee is None else rate_of(options.guarantee),
        table=_table(options),
        mode=options.mode or "auto",
        takeover=bool(options.takeover),
        socket=Path(socket_path(options.socket)),
        state_dir=Path(options.state_dir or DEFAULT_STATE_DIR),
        group=options.group or DEFAULT_GROUP,
        reconcile_s=options.reconcile_s or DEFAULT_RECONCILE_S,
        metrics=None if options.metrics is None else _address(options.metrics),
    )


def check_reload(now: Settings, fresh: Settings) -> None:
    """Raise AgentError if `fresh` differs in what a running agent cannot change."""
    changed = [name for name in _FIXED if getattr(now, name) != getattr(fresh, name)]
    if changed:
        raise AgentError(
            f"{', '.join(changed)} cannot change while the agent runs: restart it, or put the "
            "old value back"
        )


def _device(name: str) -> str:
    """A name that the kernel could know (IFNAMSIZ in linux/if.h)."""
    if not name.isprintable() or not 0 < len(name.encode()) <= 15:
        raise UsageError(f"{name!r} is no interface's name: name one that `ip link` shows")
    return name


def rate_of(text: str) -> Rate:
    """A rate as the user wrote it; AgentError if it is none."""
    try:
        return parse_rate(text)
    except RateError as error:
        raise UsageError(str(error)) from error


def _address(text: str) -> UnixAddress | TcpAddress:
    """Where metrics are served; AgentError unless `unix:PATH` or `HOST:PORT` (`[::1]:9109`)."""
    kind, _, path = text.partition(":")
    if kind == "unix" and path:
        return UnixAddress(Path(path))
    host, _, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    is_host = bool(bare) and bare.isascii() and (":" in bare) == (bare != host)
    if not is_host or not port.isdecimal() or not port.isascii() or int(port) > 65535:
        raise UsageError(
            f"{text!r} is no place for metrics: give unix:PATH or HOST:PORT, like 127.0.0.1:9109"
        )
    return TcpAddress(bare, int(port))


def _table(options: Options) -> BandTable:
    dscps = DEFAULT_DSCPS if options.dscps is None else options.dscps
    bands = len(dscps) if options.bands is None else options.bands
    share = UNMARKED_SHARE if options.unmarked_share is None else options.unmarked_share
    if not 1 <= bands <= len(dscps):
        raise UsageError(
            f"{bands} bands asked for, and DSCPs known for 1 to {len(dscps)}; choose fewer bands, "
            "or name one DSCP a band as `dscps` in the config file"
        )
    try:
        return BandTable(dscps[:bands], share, bool(options.force_dscps))
    except BandError as error:
        raise UsageError(f"the band table cannot work: {error}") from error
