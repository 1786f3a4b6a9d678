"""Facts that are files: sysfs, and the settings of programs that manage interfaces."""

from __future__ import annotations

import configparser
import re
from collections.abc import Iterator
from pathlib import Path

from p3_agent.doctor.facts import Hardware, ManagedBy, Transport

_SECTION = re.compile(r"^\[(\w+)\]\s*$", re.MULTILINE)
_NETWORKD_QDISCS = """
QDisc NetworkEmulator TokenBucketFilter PIE FlowQueuePIE StochasticFairBlue
StochasticFairnessQueueing BFIFO PFIFO PFIFOHeadDrop PFIFOFast CAKE ControlledDelay
DeficitRoundRobinScheduler EnhancedTransmissionSelection GenericRandomEarlyDetection
FairQueueingControlledDelay FairQueueing TrivialLinkEqualizer HierarchyTokenBucket
ClassfulMultiQueueing BandMultiQueueing HeavyHitterFilter QuickFairQueueing
"""
"""Sections of systemd.network(5) that set a qdisc."""
_PROFILES = tuple(
    f"{place}/NetworkManager/system-connections" for place in ("etc", "run", "usr/lib")
)


def hardware(root: Path, name: str, index: int) -> Hardware:
    """What sysfs tells of interface `name`; nothing where sysfs is another namespace's."""
    device = root / "sys/class/net" / name
    if _text(device / "ifindex") != str(index):
        return Hardware()
    limits = [
        int(_text(queue / "byte_queue_limits/limit") or 0)
        for queue in sorted((device / "queues").glob("tx-*"))
    ]
    return Hardware(
        duplex=_text(device / "duplex"),
        carrier=_text(device / "carrier") != "0",
        virtual_functions=int(_text(device / "device/sriov_numvfs") or 0),
        rdma=(device / "device/infiniband").exists(),
        queue_limits=tuple(limits) if any(limits) else (),
    )


def transport(root: Path) -> Transport:
    """TCP's settings of this network namespace, and what goes around TCP in it."""
    return Transport(
        _text(root / "proc/sys/net/ipv4/tcp_congestion_control"),
        _text(root / "sys/module/tcp_cubic/parameters/hystart") == "1",
        _sockets_of("XDP", _text(root / "proc/self/net/protocols")),
    )


def _sockets_of(protocol: str, protocols: str) -> int:
    """How many sockets of a protocol there are: name, size and number begin its line."""
    rows = (line.split() for line in protocols.splitlines())
    return next((int(row[2]) for row in rows if len(row) > 2 and row[0] == protocol), 0)


def managers(root: Path, index: int, unseen: list[str]) -> tuple[ManagedBy, ...]:
    """Programs that are told to set qdiscs of interface `index`; `unseen` gets what is closed."""
    return (*_networkd(root, index, unseen), *_network_manager(root, index, unseen))


def _networkd(root: Path, index: int, unseen: list[str]) -> Iterator[ManagedBy]:
    """What systemd-networkd has noted of the interface names the file that it follows."""
    noted = dict(
        line.split("=", 1)
        for line in _text(root / f"run/systemd/netif/links/{index}").splitlines()
        if "=" in line
    )
    qdiscs = _NETWORKD_QDISCS.split()
    dropins = noted.get("NETWORK_FILE_DROPINS", "").strip('"').split()
    for file in filter(None, (noted.get("NETWORK_FILE", ""), *dropins)):
        text = _text_or_unseen(root / file.lstrip("/"), unseen)
        for section in _SECTION.findall(text):
            if section in qdiscs:
                yield ManagedBy("systemd-networkd", file, section)


def _network_manager(root: Path, index: int, unseen: list[str]) -> Iterator[ManagedBy]:
    """NetworkManager sets qdiscs where the connection in use has a [tc] (nm-settings-keyfile)."""
    uuid = _keyfile(_text(root / f"run/NetworkManager/devices/{index}")).get(
        "device", "connection-uuid", fallback=""
    )
    if not uuid:
        return
    for directory in _PROFILES:
        for path in sorted((root / directory).glob("*")):
            profile = _keyfile(_text_or_unseen(path, unseen))
            if profile.get("connection", "uuid", fallback="") == uuid and profile.has_section("tc"):
                name = profile.get("connection", "id", fallback=uuid)
                file = f"/{path.relative_to(root)}"
                yield ManagedBy("NetworkManager", file, "tc", name)


def _keyfile(text: str) -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser(strict=False, delimiters=("=",))
    try:
        parser.read_string(text)
    except configparser.Error:
        return configparser.RawConfigParser()
    return parser


def _text(path: Path) -> str:
    """A file's content, "" if there is none or it cannot be read now."""
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def _text_or_unseen(path: Path, unseen: list[str]) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except PermissionError:
        unseen.append(f"{path} may only be read by root: whether it sets qdiscs is not known")
    except OSError:
        pass
    return ""
