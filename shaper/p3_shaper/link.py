"""Facts of an interface that decide how it may be shaped."""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
from dataclasses import dataclass

from p3_shaper.limits import LinkLimits
from p3_shaper.rates import Rate


@dataclass(frozen=True, slots=True)
class Link:
    """One interface, as it was when read.

    `index` counts within the network namespace. `mac` is "" without a hardware address. `speed` is
    None where the driver does not say, and nominal on virtual devices (veth: 10gbit). `kind` is
    rtnetlink's ("veth", "ifb", "vlan", "bond"), "" for hardware and loopback. `has_xdp` is whether
    an XDP program is attached. `tx_queues` are those in use. `gro_max_size` bounds what comes in at
    once. `parent` is the index of the interface that a vlan or macvlan hands its packets to (or a
    veth's peer), `master` that of the bond, team or bridge that this one belongs to; 0 for none in
    this namespace. `bond_mode` is a bond's (linux/if_bonding.h), else None.
    """

    index: int
    name: str
    mac: str
    mtu: int
    gso_max_size: int
    tx_queues: int
    speed: Rate | None
    is_up: bool
    kind: str = ""
    has_xdp: bool = False
    gro_max_size: int = 65_536
    parent: int = 0
    master: int = 0
    bond_mode: int | None = None

    @property
    def limits(self) -> LinkLimits:
        """What the builders of trees need to know of it."""
        return LinkLimits(gso_max_size=self.gso_max_size, mtu=self.mtu)


_SIOCETHTOOL = 0x8946
_ETHTOOL_GSET = 1
_ETHTOOL_GCHANNELS = 0x3C
_ETHTOOL_CMD = struct.Struct("=I8xH14xH14x")  # cmd, lower half of the speed, upper half
_ETHTOOL_CHANNELS = struct.Struct("=I20xI4xI")  # cmd, queues that only send, those that do both
_IFREQ = struct.Struct("=16sQ16x")
_SPEED_UNKNOWN = 0xFFFF_FFFF


def ethtool_speed(control: socket.socket, name: str) -> Rate | None:
    """The speed that the driver reports (linux/ethtool.h); None if it reports none.

    `control` is an IP socket made in the interface's network namespace.
    """
    answer = _ethtool(control, name, _ETHTOOL_CMD.pack(_ETHTOOL_GSET, 0, 0))
    if answer is None:
        return None
    _, low, high = _ETHTOOL_CMD.unpack(answer)
    megabits = high << 16 | low
    return Rate(megabits * 10**6) if 0 < megabits < _SPEED_UNKNOWN else None


def ethtool_tx_queues(control: socket.socket, name: str) -> int | None:
    """How many transmit queues are in use, fewer than there may be; None if it is not said."""
    answer = _ethtool(control, name, _ETHTOOL_CHANNELS.pack(_ETHTOOL_GCHANNELS, 0, 0))
    if answer is None:
        return None
    _, sending, combined = _ETHTOOL_CHANNELS.unpack(answer)
    return int(sending + combined) or None


def _ethtool(control: socket.socket, name: str, command: bytes) -> bytes | None:
    """The driver's answer, of the command's size; None where there is no such driver."""
    buffer = ctypes.create_string_buffer(command, len(command))
    request = _IFREQ.pack(os.fsencode(name), ctypes.addressof(buffer))
    try:
        fcntl.ioctl(control, _SIOCETHTOOL, request)
    except OSError:
        return None  # no driver behind it, as for loopback and ifb
    return buffer.raw
