"""Which qdiscs, classifiers and actions the running kernel has, without touching an interface."""

from __future__ import annotations

import errno
import gzip
import platform
from collections.abc import Iterable
from pathlib import Path

from p3_shaper.channel import Channel, ChannelError
from p3_shaper.encode import encode_qdisc
from p3_shaper.encode_u32 import encode_filter, filter_info
from p3_shaper.parts import ETH_P_ALL, Filter, HtbOptions, Match, Qdisc
from p3_shaper.tcmessage import TC_ROOT, Object, TcMessage, Verb

_CLASSIFIERS = frozenset(
    {"basic", "bpf", "cgroup", "flow", "flower", "fw", "matchall", "route", "tcindex", "u32"}
)
_ACTIONS = frozenset({"mirred"})
_ALWAYS = frozenset({"mq", "pfifo_fast", "noqueue"})
_OPTION = {
    "pfifo": "NET_SCH_FIFO",
    "bfifo": "NET_SCH_FIFO",
    "clsact": "NET_SCH_INGRESS",
    **{name: f"NET_CLS_{name.upper()}" for name in _CLASSIFIERS},
    **{name: f"NET_ACT_{name.upper()}" for name in _ACTIONS},
}

_LOOPBACK = 1


async def missing_kinds(names: Iterable[str]) -> frozenset[str]:
    """Those of `names` that the kernel has neither built in nor as a module that it can load.

    Tried on the loopback of a namespace that is made for it and goes with it. Without the right to
    make one (CAP_SYS_ADMIN), the kernel's configuration file answers; where there is none, nothing
    is taken to be missing, and the kernel's own refusal comes later.
    """
    wanted = sorted(set(names))
    if not wanted:
        return frozenset()
    try:
        channel = Channel.to_new()
    except PermissionError:
        return missing_in_config(_kernel_config(), wanted)
    async with channel:
        found = [await _has(channel, number << 16, name) for number, name in enumerate(wanted, 1)]
    return frozenset(name for name, has in zip(wanted, found, strict=True) if not has)


async def _has(channel: Channel, handle: int, name: str) -> bool:
    """Each try has a handle of its own: under one that is there, the kernel refuses other kinds."""
    if name not in _CLASSIFIERS and name not in _ACTIONS:
        return await _knows(channel, TcMessage(Object.QDISC, handle, TC_ROOT, name))
    root = encode_qdisc(Qdisc("htb", handle, TC_ROOT, HtbOptions(default=0)))
    if not await _knows(channel, root):
        return False
    if name in _ACTIONS:
        everything = (Match(offset=0, mask=0, value=0),)
        probe = encode_filter(Filter(handle, 1, ETH_P_ALL, everything, redirect=_LOOPBACK))
    else:
        probe = TcMessage(Object.FILTER, 0, handle, name, b"", filter_info(1, ETH_P_ALL))
    return await _knows(channel, probe)


async def _knows(channel: Channel, message: TcMessage) -> bool:
    """Whether the kernel knows the kind; an unknown one is ENOENT, missing options EINVAL."""
    try:
        await channel.change(Verb.REPLACE, message.object, message.payload(_LOOPBACK))
    except ChannelError as error:
        return error.errno != errno.ENOENT
    return True


def _kernel_config() -> str | None:
    embedded = Path("/proc/config.gz")
    if embedded.exists():
        return gzip.decompress(embedded.read_bytes()).decode()
    installed = Path("/boot", f"config-{platform.release()}")
    return installed.read_text() if installed.exists() else None


def missing_in_config(config: str | None, names: Iterable[str]) -> frozenset[str]:
    """Those of `names` that a kernel built from `config` lacks; none if that is not known."""
    if config is None:
        return frozenset()
    options = {line.partition("=")[0] for line in config.splitlines() if line[-2:] in ("=y", "=m")}
    return frozenset(
        name
        for name in names
        if name not in _ALWAYS
        and f"CONFIG_{_OPTION.get(name, f'NET_SCH_{name.upper()}')}" not in options
    )
