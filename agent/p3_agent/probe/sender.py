"""Probes out, answers in.

Probes leave an ordinary UDP socket, so that the kernel routes and treats them as it does a
program's; only hearing of the ICMP errors takes a raw socket.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from ipaddress import ip_address
from types import TracebackType
from typing import Self

from p3_agent.errors import AgentError
from p3_agent.probe import echo
from p3_agent.probe.quotes import Reader, reader
from p3_agent.probe.values import END_TO_END, UNMARKED, Answer, Kind, Probe, Version

_INT = struct.Struct("@i")
_LARGEST = 65536


@dataclass(frozen=True, slots=True)
class Target:
    """An address and UDP port; `sockaddr` is what sockets want."""

    version: Version
    address: str
    sockaddr: tuple[str | int, ...]


def resolve(host: str, port: int, version: Version | None) -> Target:
    """The first address of `host`, of IP `version` if one is asked for; AgentError without one."""
    family = {None: socket.AF_UNSPEC, 4: socket.AF_INET, 6: socket.AF_INET6}[version]
    try:
        found = socket.getaddrinfo(host, port, family, socket.SOCK_DGRAM)[0]
    except (OSError, UnicodeError) as error:
        raise AgentError(f"there is no address for {host!r} ({error}): check the name") from error
    address, *rest = found[4]
    address = str(address)
    if ip_address(address.partition("%")[0]).is_multicast:
        raise AgentError(f"{address} is a multicast address: name one host")
    return Target(6 if found[0] == socket.AF_INET6 else 4, address, (address, *map(int, rest)))


class Sender:
    """The two sockets of one look at a path; a context manager.

    Raises AgentError without scapy, without CAP_NET_RAW, or for a device that is not there.
    """

    def __init__(self, target: Target, dscps: Sequence[int], device: str | None) -> None:
        self._target = target
        self._sent = (UNMARKED, *dscps)
        self._token = os.urandom(echo.TOKEN)
        self._read: Reader = reader(target.version)
        with ExitStack() as exits:
            self._icmp = exits.enter_context(_icmp_socket(target.version))
            self._udp = exits.enter_context(_udp_socket(target.version, device))
            self._exits = exits.pop_all()
        self._port = int(self._udp.getsockname()[1])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._exits.close()

    def ask(self, probes: Sequence[Probe], wait: float) -> list[Answer]:
        """Send, and give what comes back: at the latest after `wait` seconds, earlier when all has.

        Answers to earlier probes may be among it. Raises AgentError when nothing can be sent.
        """
        for probe in probes:
            self._send(probe)
        missing = set(probes)
        answers: list[Answer] = []
        deadline = time.monotonic() + wait
        while missing and (left := deadline - time.monotonic()) > 0:
            ready, _, _ = select.select([self._udp, self._icmp], [], [], left)
            for one in ready:
                answer = self._hear_echo() if one is self._udp else self._hear_icmp()
                if answer is not None:
                    answers.append(answer)
                    missing.discard(answer.probe)
        return answers

    def _send(self, probe: Probe) -> None:
        v4 = self._target.version == 4
        level = socket.IPPROTO_IP if v4 else socket.IPPROTO_IPV6
        limit, mark = (
            (socket.IP_TTL, socket.IP_TOS) if v4 else (socket.IPV6_HOPLIMIT, socket.IPV6_TCLASS)
        )
        headers = [
            (level, limit, _INT.pack(probe.hops)),
            (level, mark, _INT.pack(probe.dscp << 2)),
        ]
        data = echo.request(self._token, self._number(probe))
        try:
            self._udp.sendmsg([data], headers, 0, self._target.sockaddr)
        except OSError as error:
            raise AgentError(
                f"cannot send to {self._target.address}: {error.strerror}; "
                "check the address, the route and the firewall here"
            ) from error

    def _hear_echo(self) -> Answer | None:
        data, sender = self._udp.recvfrom(_LARGEST)
        reply = echo.read_reply(data, self._token)
        probe = None if reply is None else self._probe(reply[0])
        if reply is None or probe is None:
            return None
        return Answer(probe, Kind.ECHOED, str(sender[0]), reply[1])

    def _hear_icmp(self) -> Answer | None:
        message, sender = self._icmp.recvfrom(_LARGEST)
        quote = self._read(message)
        if quote is None or (quote.source_port, quote.target_port, quote.target) != (
            self._port,
            self._target.sockaddr[1],
            self._target.address.partition("%")[0],
        ):
            return None
        probe = self._probe(echo.number_of(quote.length))
        if probe is None:
            return None
        return Answer(probe, quote.kind, str(sender[0]), quote.tos, quote.reason)

    def _number(self, probe: Probe) -> int:
        """Small even for the far end, since probes grow with it."""
        row = 0 if probe.hops == END_TO_END else probe.hops
        return row * len(self._sent) + self._sent.index(probe.dscp)

    def _probe(self, number: int) -> Probe | None:
        row, index = divmod(number, len(self._sent))
        return Probe(row or END_TO_END, self._sent[index]) if 0 <= row < END_TO_END else None


def _icmp_socket(version: Version) -> socket.socket:
    family = socket.AF_INET if version == 4 else socket.AF_INET6
    protocol = socket.IPPROTO_ICMP if version == 4 else socket.IPPROTO_ICMPV6
    try:
        return socket.socket(family, socket.SOCK_RAW | socket.SOCK_NONBLOCK, protocol)
    except PermissionError as error:
        raise AgentError(
            "no right to hear ICMP: run p3-agent as root, or grant it CAP_NET_RAW"
        ) from error
    except OSError as error:
        raise AgentError(f"no IPv{version} here ({error.strerror}): choose the other") from error


def _udp_socket(version: Version, device: str | None) -> socket.socket:
    family = socket.AF_INET if version == 4 else socket.AF_INET6
    with ExitStack() as exits:
        made = exits.enter_context(socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK))
        if device is not None:
            try:
                made.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, os.fsencode(device))
            except OSError as error:
                raise AgentError(
                    f"cannot send by {device} ({error.strerror}): name an interface of `ip link`"
                ) from error
        made.bind(("", 0))
        exits.pop_all()
        return made
