"""What is known of a node when the checks look at it. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from p3_agent.messages import Status
from p3_agent.processes import Process
from p3_shaper.actions import Action
from p3_shaper.bands import BandTable
from p3_shaper.link import Link
from p3_shaper.rates import Rate
from p3_shaper.sockdiag import Socket
from p3_shaper.tree import Tree


@dataclass(frozen=True, slots=True)
class EgressFilter:
    """A filter of clsact that sees packets before the root qdisc; `targets` are its redirects'."""

    kind: str
    priority: int
    actions: tuple[Action, ...] = ()
    targets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Below:
    """An interface that ours sends through, and its root qdisc's kind.

    `backlog` is the most bytes that waited there, `standing` whether some did most of the time.
    """

    name: str
    kind: str
    root: str = ""
    backlog: int = 0
    standing: bool = False


@dataclass(frozen=True, slots=True)
class Hardware:
    """What sysfs says of an interface (Documentation/ABI/testing/sysfs-class-net).

    `queue_limits` are the bytes that BQL allows each transmit queue at this time; empty where the
    driver has none.
    """

    duplex: str = ""
    carrier: bool = True
    virtual_functions: int = 0
    rdma: bool = False
    queue_limits: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ManagedBy:
    """A program that manages this interface and is told, in `file`, to set its qdiscs.

    `profile` is NetworkManager's name for the connection.
    """

    program: str
    file: str
    section: str
    profile: str = ""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A rule that changes the DSCP: where it is, in the words of the tool that shows it."""

    place: str
    hook: str
    delete: str


@dataclass(frozen=True, slots=True)
class Route:
    """The way to a peer of marked sockets: the interface that it leaves by."""

    peer: str
    device: str
    kind: str


@dataclass(frozen=True, slots=True)
class Transport:
    """TCP's settings: the default congestion control, and whether cubic's HyStart is on.

    `xdp_sockets` counts AF_XDP sockets of this network namespace.
    """

    congestion: str = ""
    hystart: bool = False
    xdp_sockets: int = 0


@dataclass(frozen=True, slots=True)
class Load:
    """What went on for `seconds`, looked at `looks` times.

    `sent` is bits a second that left the interface. `queued_here` and `wanting` count the looks at
    which bytes waited in the root qdisc, and in marked TCP sockets. `resent` counts segments of
    marked sockets, `dropped` packets of the root qdisc.
    """

    seconds: float
    looks: int
    sent: float
    queued_here: int
    wanting: int
    dropped: int
    resent: int


@dataclass(frozen=True, slots=True)
class Facts:
    """All of it. `rate` is the agent's, else the one asked about; None if neither is known.

    `agent` is None where none keeps this interface. `sockets` are those with a band's mark that
    send to other machines, and `holders` their processes by inode. `others` are the kinds of the
    other interfaces here, by name; `master` is the bridge or bond that this one is a port of, and
    `lower` are those that it sends through. `tcx_programs` run at its
    egress. `unseen` says what could not be looked at, and why.
    """

    link: Link
    table: BandTable
    tree: Tree
    rate: Rate | None = None
    agent: Status | None = None
    missing: frozenset[str] = frozenset()
    hardware: Hardware = Hardware()
    others: Mapping[str, str] = field(default_factory=dict)
    master: str = ""
    lower: tuple[str, ...] = ()
    egress: tuple[EgressFilter, ...] = ()
    tcx_programs: int = 0
    below: tuple[Below, ...] = ()
    managers: tuple[ManagedBy, ...] = ()
    rewrites: tuple[Rewrite, ...] = ()
    sockets: tuple[Socket, ...] = ()
    holders: Mapping[int, Process] = field(default_factory=dict)
    routes: tuple[Route, ...] = ()
    transport: Transport = Transport()
    load: Load | None = None
    unseen: tuple[str, ...] = ()
