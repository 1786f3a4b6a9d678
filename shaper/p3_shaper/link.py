"""Facts of an interface that decide how it may be shaped."""

from __future__ import annotations

import ctypes
import fcntl
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
    an XDP program is attached.
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

    @property
    def limits(self) -> LinkLimits:
        """What the builders of trees need to know of it."""
        return LinkLimits(gso_max_size=self.gso_max_size, mtu=self.mtu)


_SIOCETHTOOL = 0x8946
_ETHTOOL_GSET = 1
_ETHTOOL_CMD = struct.Struct("=I8xH14xH14x")  # cmd, lower half of the speed, upper half
_IFREQ = struct.Struct("=16sQ16x")
_SPEED_UNKNOWN = 0xFFFF_FFFF


def ethtool_speed(control: socket.socket, name: str) -> Rate | None:
    """The speed that the driver reports (linux/ethtool.h); None if it reports none.

    `control` is an IP socket made in the interface's network namespace.
    """
    command = ctypes.create_string_buffer(_ETHTOOL_CMD.pack(_ETHTOOL_GSET, 0, 0), _ETHTOOL_CMD.size)
    request = _IFREQ.pack(name.encode(), ctypes.addressof(command))
    try:
        fcntl.ioctl(control, _SIOCETHTOOL, request)
    except OSError:
        return None  # no driver behind it, as for loopback and ifb
    _, low, high = _ETHTOOL_CMD.unpack(command.raw)
    megabits = high << 16 | low
    return Rate(megabits * 10**6) if 0 < megabits < _SPEED_UNKNOWN else None
