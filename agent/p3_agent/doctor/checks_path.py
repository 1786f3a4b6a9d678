"""The way of a packet: what goes around the bands, queues below them, loses the mark. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from p3_agent.doctor.facts import EgressFilter, Facts
from p3_agent.doctor.findings import Finding, Level
from p3_agent.doctor.mends import start_anew
from p3_agent.original import is_others
from p3_shaper.matches import sees_ipv6
from p3_shaper.tcmessage import handle_text
from p3_shaper.tree import AGENT_MAJOR

_TUNNELS = frozenset(
    {"wireguard", "vxlan", "geneve", "gre", "gretap", "ip6gre", "ip6gretap", "ipip", "sit"}
    | {"ip6tnl", "tun", "vti", "vti6", "xfrm", "erspan", "ip6erspan"}
)
_SHAPERS = frozenset({"tbf", "htb", "hfsc", "netem", "cake", "cbq"})


def root(facts: Facts) -> Iterator[Finding]:
    """Another's qdisc where the bands would be."""
    top = facts.tree.root
    if top is None or not is_others(facts.tree):
        return
    name = facts.link.name
    text = f"{top.kind} {handle_text(top.handle)}"
    if facts.agent is None:
        yield Finding(
            "root",
            Level.WARNING,
            f"{name} has the root qdisc {text}, which is not the agent's: it is refused there",
            f"p3-agent run --dev {name} --takeover  # puts it back at the end",
        )
    else:
        yield Finding(
            "root",
            Level.ERROR,
            f"the root qdisc {text} of another program has taken the bands' place on {name}",
            f"tc qdisc del dev {name} root  # the agent then puts the bands back",
        )


def egress(facts: Facts) -> Iterator[Finding]:
    """Filters of clsact that take packets away before the bands, or change their marks."""
    name = facts.link.name
    for item in facts.egress:
        delete = f"tc filter del dev {name} egress pref {item.priority}"
        if item.targets:
            yield Finding(
                "egress",
                Level.ERROR,
                f"a {item.kind} filter (pref {item.priority}) at the egress of {name} sends what "
                f"it matches to {', '.join(item.targets)}, past the bands",
                delete,
            )
        elif any(action.kind == "pedit" for action in item.actions):
            yield Finding(
                "egress",
                Level.WARNING,
                f"a {item.kind} filter (pref {item.priority}) at the egress of {name} rewrites "
                "packets (pedit) before the bands see them",
                delete,
            )
        elif _runs_bpf(item):
            yield Finding(
                "egress",
                Level.NOTE,
                f"a bpf program (pref {item.priority}) at the egress of {name} sees packets "
                "before the bands, and may redirect or rewrite them",
                f"bpftool net show dev {name}",
            )
    if facts.tcx_programs:
        yield Finding(
            "egress",
            Level.NOTE,
            f"{facts.tcx_programs} bpf programs of tcx at the egress of {name} see packets before "
            "the bands, and may redirect or rewrite them",
            f"bpftool net show dev {name}",
        )


def _runs_bpf(item: EgressFilter) -> bool:
    return item.kind == "bpf" or any(action.kind == "bpf" for action in item.actions)


def bypasses(facts: Facts) -> Iterator[Finding]:
    """Ways to the wire on which there is no qdisc at all."""
    link, hardware = facts.link, facts.hardware
    if link.has_xdp:
        yield Finding(
            "bypass",
            Level.NOTE,
            f"an XDP program is attached to {link.name}: what it forwards passes no qdisc",
            f"ip link set dev {link.name} xdp off",
        )
    if facts.transport.xdp_sockets:
        yield Finding(
            "bypass",
            Level.NOTE,
            f"{facts.transport.xdp_sockets} AF_XDP sockets are open here: what they send, on "
            "whichever interface they are bound to, passes no qdisc",
            "ss --xdp --processes --extended  # whose; nothing without CONFIG_XDP_SOCKETS_DIAG",
        )
    if hardware.virtual_functions:
        yield Finding(
            "bypass",
            Level.WARNING,
            f"{link.name} has {hardware.virtual_functions} virtual functions (SR-IOV): what "
            "containers and virtual machines send on them passes no qdisc of this interface",
            f"ip link set dev {link.name} vf 0 max_tx_rate MBITS  # each, to leave room",
        )
    if hardware.rdma:
        yield Finding(
            "bypass",
            Level.NOTE,
            f"{link.name} does RDMA, and RDMA passes no qdisc: NCCL must use sockets to be in "
            "the bands",
            "export NCCL_IB_DISABLE=1",
        )


def routes(facts: Facts) -> Iterator[Finding]:
    """Peers of marked sockets that are reached some other way."""
    name = facts.link.name
    elsewhere: dict[tuple[str, str], list[str]] = {}
    for route in facts.routes:
        if route.device != name:
            elsewhere.setdefault((route.device, route.kind), []).append(route.peer)
    for (device, kind), peers in elsewhere.items():
        to = peers[0] if len(peers) == 1 else f"{peers[0]} and {len(peers) - 1} more peers"
        if kind in _TUNNELS:
            yield Finding(
                "route",
                Level.WARNING,
                f"marked sockets to {to} leave in the {kind} tunnel {device}, whose outer packets "
                "may not carry the mark",
                f"p3-agent run --dev {device} --rate RATE  # where the mark is still seen",
            )
        else:
            yield Finding(
                "route",
                Level.ERROR,
                f"marked sockets to {to} leave by {device}, and the bands are on {name}",
                f"p3-agent run --dev {device} --rate RATE",
            )


def below(facts: Facts) -> Iterator[Finding]:
    """Interfaces under ours that queue: bytes wait there in order of arrival."""
    for item in facts.below:
        if item.standing:
            yield Finding(
                "below",
                Level.ERROR,
                f"up to {item.backlog} bytes wait in {item.root or 'the queue'} of {item.name}, "
                f"beneath the bands of {facts.link.name}: there nothing has priority",
                f"p3-agent run --dev {item.name} --rate RATE --takeover",
            )
        elif item.root in _SHAPERS:
            yield Finding(
                "below",
                Level.WARNING,
                f"{item.name}, beneath {facts.link.name}, has a {item.root}, which will hold the "
                "queue if its rate is the lower",
                f"tc qdisc del dev {item.name} root",
            )


def rewrites(facts: Facts) -> Iterator[Finding]:
    """Firewall rules that change the mark."""
    for rule in facts.rewrites:
        yield Finding(
            "marks",
            Level.WARNING,
            f"a rule in {rule.place} (hook {rule.hook}) sets the DSCP, so that what it matches "
            "is in another band than its sender chose",
            rule.delete,
        )


def ipv6(facts: Facts) -> Iterator[Finding]:
    """IPv6 traffic in bands whose tree does not know IPv6."""
    if facts.tree.owner != AGENT_MAJOR or not any(item.is_ipv6 for item in facts.sockets):
        return
    if not any(sees_ipv6(item.matches) for item in facts.tree.filters):
        yield Finding(
            "ipv6",
            Level.ERROR,
            f"marked sockets use IPv6, and no filter of {facts.link.name} looks at IPv6: all of "
            "it is taken for unmarked",
            start_anew(facts),
        )
