"""What `tc` asks the kernel for, as bytes: a netlink monitor (nlmon) in the node shows them."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from p3_shaper.cluster import Node
from p3_shaper.namespace import socket_in
from p3_shaper.tcmessage import Object

_ETH_P_ALL = 0x0003
_HEADER = struct.Struct("=IHHII")
_REQUEST = 1
_NEW = {36: Object.QDISC, 40: Object.CLASS, 44: Object.FILTER}
"""RTM_NEWQDISC, RTM_NEWTCLASS, RTM_NEWTFILTER in linux/rtnetlink.h."""


class Requests:
    """What has been asked for since the monitor came up, in order."""

    def __init__(self, monitor: socket.socket) -> None:
        self._monitor = monitor

    def of(self, node: Node, line: str) -> bytes:
        """The one request that `tc LINE` makes, less its header; the kernel may refuse it."""
        node.run(["tc", *line.split()], check=False)
        (found,) = self._bodies()
        return found

    def _bodies(self) -> Iterator[bytes]:
        """Answers and notices have the same types, and no flag that says request."""
        while True:
            try:
                data = self._monitor.recv(1 << 16)
            except BlockingIOError:
                return
            length, kind, flags, _, _ = _HEADER.unpack_from(data)
            if kind in _NEW and flags & _REQUEST:
                yield data[_HEADER.size : length]


@contextmanager
def monitored(node: Node) -> Iterator[Requests]:
    """A monitor in `node`; it goes with the node."""
    for words in ("link add nlmon0 type nlmon", "link set nlmon0 up"):
        node.run(["ip", *words.split()])
    with socket_in(node.name, socket.AF_PACKET, socket.SOCK_DGRAM) as monitor:
        monitor.setblocking(False)
        monitor.bind(("nlmon0", _ETH_P_ALL))
        yield Requests(monitor)
