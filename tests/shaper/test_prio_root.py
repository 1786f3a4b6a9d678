"""prio at the root of a device that is slow itself, as a NIC with a full ring is: a serial line.

SLIP over a pseudo terminal stops its queue while nobody reads at the other end, so a test decides
byte by byte when the wire is free. In the second kernel, which has the module and loses the device.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import struct
import subprocess
import termios
import tty
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import pytest

from p3_shaper.bands import Band, BandTable, default_table
from p3_shaper.netlink import open_netlink
from p3_shaper.tree import prio_tree

_N_SLIP = 1  # linux/tty.h
_SIOCGIFNAME = 0x8910
_DGRAM = bytes(1000)
PEERS = {socket.AF_INET: "10.79.0.2", socket.AF_INET6: "fd79::2"}
TABLE = default_table()
FIFTEEN = BandTable(tuple(range(5, 20)))


@dataclass(frozen=True)
class Line:
    """A network device and the far end of its wire, a descriptor to read from."""

    name: str
    far: int

    def carry(self, count: int, senders: list[socket.socket]) -> None:
        """Let so many bytes pass, while the senders have more to send than that."""
        while count > 0:
            for sender in senders:
                fill(sender)
            count -= len(os.read(self.far, 4096))


@contextmanager
def serial_line() -> Iterator[Line]:
    subprocess.run(["modprobe", "slip"], check=True)
    far, near = os.openpty()
    try:
        tty.setraw(near)
        fcntl.ioctl(near, termios.TIOCSETD, struct.pack("i", _N_SLIP))
        name = fcntl.ioctl(near, _SIOCGIFNAME, bytes(16)).rstrip(b"\0").decode()
        commands = (
            f"link set {name} mtu 1500 up",
            f"addr add 10.79.0.1 peer {PEERS[socket.AF_INET]} dev {name}",
            f"addr add fd79::1/64 dev {name} nodad",
        )
        subprocess.run(["ip", "-batch", "-"], input="\n".join(commands), text=True, check=True)
        yield Line(name, far)
    finally:
        os.close(near)
        os.close(far)


@contextmanager
def sending(family: socket.AddressFamily, band: Band) -> Iterator[socket.socket]:
    """A socket of the band that has sent as much as it may without waiting."""
    with socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
        if family == socket.AF_INET:
            sender.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, band.tos)
        else:
            sender.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, band.tos)
        sender.connect((PEERS[family], 9))
        fill(sender)
        yield sender


def fill(sender: socket.socket) -> None:
    try:
        while True:
            sender.send(_DGRAM)
    except BlockingIOError:
        return


@pytest.mark.second_kernel
@pytest.mark.parametrize("table", [TABLE, FIFTEEN], ids=["7 bands", "16 classes"])
@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6], ids=["IPv4", "IPv6"])
def test_the_wire_is_the_higher_band_s_while_both_wait_and_then_the_lower_s(
    family: socket.AddressFamily, table: BandTable
) -> None:
    high, low = table.bands[-2:]
    tree = prio_tree(table)
    above, below = (tree.bands[band.index] for band in (high, low))

    async def work(line: Line) -> None:
        async with open_netlink() as netlink:
            index = (await netlink.link(line.name)).index
            await netlink.ensure(index, tree)
            with ExitStack() as open_now:
                lower = open_now.enter_context(sending(family, low))
                with sending(family, high) as higher:
                    line.carry(100_000, [lower, higher])  # what was on the wire before both were
                    before = await netlink.statistics(index)
                    line.carry(400_000, [lower, higher])
                    after = await netlink.statistics(index)
                    assert after[below].backlog > 0
                    first, second = (
                        after[classid].bytes - before[classid].bytes for classid in (above, below)
                    )
                    assert first > 300_000
                    assert first >= 0.95 * (first + second)
                    assert {item.drops for item in after.values()} == {0}
                line.carry(400_000, [lower])
                last = await netlink.statistics(index)
                assert last[above].backlog == 0
                assert last[below].bytes - after[below].bytes > 100_000

    with serial_line() as line:
        asyncio.run(work(line))
