"""Every check of `p3-agent doctor`, from facts to findings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from p3_agent.doctor import files, firewall
from p3_agent.doctor.checks import diagnose
from p3_agent.doctor.facts import (
    Below,
    EgressFilter,
    Facts,
    Hardware,
    Load,
    ManagedBy,
    Rewrite,
    Route,
    Transport,
)
from p3_agent.doctor.findings import Level, is_ill, lines
from p3_agent.messages import Drift, Status
from p3_agent.processes import Process
from p3_shaper.actions import Action
from p3_shaper.bands import default_table
from p3_shaper.link import Link
from p3_shaper.matches import sees_ipv6
from p3_shaper.parts import HtbOptions, Qdisc
from p3_shaper.rates import parse_rate
from p3_shaper.sockdiag import Socket
from p3_shaper.tcmessage import TC_ROOT
from p3_shaper.tree import Tree, htb_tree

TABLE = default_table()
LINK = Link(2, "eth0", "02:00:00:00:00:01", 1500, 65536, 1, parse_rate("10gbit"), True)
STATUS = Status(
    "1", 7, "eth0", 2, "htb", "as asked", 9 * 10**9, "ok", (), (), Drift(0, ()), reconciliations=1
)
MARKED = Socket(
    "tcp", 11, 0, "10.0.0.1", 5000, "10.0.0.2", 6000, TABLE.dscps[0], 0, congestion="reno"
)
RATE = parse_rate("9gbit")
SOUND = Facts(
    link=LINK,
    table=TABLE,
    tree=htb_tree(TABLE, RATE, LINK.limits),
    rate=RATE,
    agent=STATUS,
    hardware=Hardware(duplex="full", queue_limits=(60_000,)),
    sockets=(MARKED,),
    holders={11: Process(9, "rank")},
    routes=(Route("10.0.0.2", "eth0", ""),),
    transport=Transport("cubic", hystart=True),
    load=Load(1.0, 20, 9e9, queued_here=20, wanting=20, dropped=0, resent=0),
)
FOREIGN = Tree(qdiscs=(Qdisc("htb", 0x10000, TC_ROOT, HtbOptions(0)),))


def test_a_sound_node_has_no_findings() -> None:
    assert diagnose(SOUND) == ()


def link(**changes: object) -> Facts:
    return replace(SOUND, link=replace(LINK, **changes))  # type: ignore[arg-type]


def replace_status(**changes: object) -> Status:
    return msgspec.structs.replace(STATUS, **changes)


def hardware(**changes: object) -> Facts:
    return replace(SOUND, hardware=replace(SOUND.hardware, **changes))  # type: ignore[arg-type]


def load(**changes: object) -> Facts:
    assert SOUND.load is not None
    return replace(SOUND, load=replace(SOUND.load, **changes))  # type: ignore[arg-type]


def only_ipv4(tree: Tree) -> Tree:
    return replace(
        tree, filters=tuple(item for item in tree.filters if not sees_ipv6(item.matches))
    )


PEDIT = EgressFilter("u32", 3, (Action("pedit"),))
AWAY = EgressFilter("u32", 3, (Action("mirred", 5),), ("eth1",))
PROGRAM = EgressFilter("bpf", 1)
CUBIC = replace(MARKED, congestion="cubic")
IPV6 = replace(MARKED, peer="fd00::2", address="fd00::1")
NM = ManagedBy("NetworkManager", "/etc/x.nmconnection", "tc", "office")
NETWORKD = ManagedBy("systemd-networkd", "/etc/systemd/network/a.network", "CAKE")
E, W, N = Level.ERROR, Level.WARNING, Level.NOTE


@pytest.mark.parametrize(
    ("facts", "check", "level", "seen", "mend"),
    [
        (replace(SOUND, missing=frozenset({"prio"})), "kinds", N, "no prio", "sch_prio"),
        (replace(SOUND, missing=frozenset({"htb"})), "kinds", W, "guarantee", "sch_htb"),
        (replace(SOUND, missing=frozenset({"htb", "prio"})), "kinds", E, "no htb", "sch_prio"),
        (replace(SOUND, missing=frozenset({"u32"})), "kinds", E, "no u32", "cls_u32"),
        (replace(SOUND, agent=None), "agent", N, "no agent", "p3-agent run"),
        (
            replace(SOUND, agent=replace_status(state="cannot be repaired")),
            "agent",
            E,
            "cannot be repaired",
            "tc -s",
        ),
        (
            replace(SOUND, agent=replace_status(drift=Drift(3, ("add qdisc",)))),
            "agent",
            W,
            "3 times",
            "tc monitor",
        ),
        (replace(SOUND, managers=(NM,)), "managers", W, "[tc]", "modify 'office' remove tc"),
        (replace(SOUND, managers=(NETWORKD,)), "managers", W, "[CAKE]", "networkctl reload"),
        (link(is_up=False), "link", E, "down", "ip link set dev eth0 up"),
        (hardware(carrier=False), "link", E, "no carrier", "ethtool eth0"),
        (hardware(duplex="half"), "link", W, "half duplex", "autoneg on"),
        (link(speed=parse_rate("1gbit")), "speed", E, "negotiated 1gbit", 'rate = "984mbit"'),
        (replace(SOUND, rate=LINK.speed), "speed", W, "24 bytes", 'rate = "9.843gbit"'),
        (link(gso_max_size=200_000, speed=None), "burst", W, "GSO", "restart"),
        (
            replace(hardware(queue_limits=(3000,)), rate=parse_rate("20mbit")),
            "burst",
            W,
            "26 ms at 20mbit",
            "gso_max_size 25000",
        ),
        (
            replace(link(speed=None, tx_queues=16), rate=parse_rate("25gbit")),
            "queues",
            W,
            "one lock",
            "--mode mq+prio",
        ),
        (hardware(queue_limits=()), "queues", N, "no BQL", "--set-ring"),
        (hardware(queue_limits=(3_000_000,)), "queues", N, "3000000 bytes", "limit_max"),
        (
            replace(SOUND, master="bond0", others={"bond0": "bond"}),
            "stack",
            N,
            "port of the bond bond0",
            "lower_",
        ),
        (link(kind="bridge"), "stack", W, "is a bridge", "brif"),
        (link(kind="veth"), "stack", N, "veth pair", "on the host"),
        (replace(SOUND, others={"cali1": "veth"}), "stack", N, "1 veth", "--dev cali1"),
        (replace(SOUND, tree=FOREIGN), "root", E, "htb 1:", "tc qdisc del dev eth0 root"),
        (replace(SOUND, egress=(AWAY,)), "egress", E, "to eth1", "egress pref 3"),
        (replace(SOUND, egress=(PEDIT,)), "egress", W, "pedit", "egress pref 3"),
        (replace(SOUND, egress=(PROGRAM,)), "egress", N, "bpf program", "bpftool"),
        (replace(SOUND, tcx_programs=2), "egress", N, "2 bpf programs of tcx", "bpftool"),
        (link(has_xdp=True), "bypass", N, "XDP", "xdp off"),
        (hardware(virtual_functions=8), "bypass", W, "8 virtual", "max_tx_rate"),
        (hardware(rdma=True), "bypass", N, "RDMA", "NCCL_IB_DISABLE=1"),
        (
            replace(SOUND, routes=(Route("10.9.0.2", "eth1", ""), Route("10.9.0.3", "eth1", ""))),
            "route",
            E,
            "10.9.0.2 and 1 more peers leave by eth1",
            "--dev eth1",
        ),
        (
            replace(SOUND, routes=(Route("10.9.0.2", "wg0", "wireguard"),)),
            "route",
            W,
            "tunnel wg0",
            "--dev wg0",
        ),
        (
            replace(SOUND, below=(Below("up0", "", "tbf", 9000, True),)),
            "below",
            E,
            "9000 bytes wait in tbf of up0",
            "--dev up0",
        ),
        (replace(SOUND, below=(Below("up0", "", "tbf"),)), "below", W, "has a tbf", "del dev up0"),
        (
            replace(SOUND, rewrites=(Rewrite("inet a b", "output", "nft delete"),)),
            "marks",
            W,
            "inet a b",
            "nft delete",
        ),
        (
            replace(SOUND, sockets=(IPV6,), tree=only_ipv4(SOUND.tree)),
            "ipv6",
            E,
            "IPv6",
            "restart",
        ),
        (
            replace(SOUND, transport=Transport("cubic", xdp_sockets=2)),
            "bypass",
            N,
            "2 AF_XDP sockets",
            "ss --xdp",
        ),
        (replace(SOUND, sockets=(CUBIC,)), "congestion", W, "rank[9] with cubic", "hystart"),
        (
            replace(SOUND, sockets=(replace(MARKED, unsent=2_000_000),)),
            "unsent",
            W,
            "2000000 bytes",
            "tcp_notsent_lowat",
        ),
        (load(wanting=0), "bottleneck", N, "nothing waiting", "--seconds 10"),
        (load(queued_here=3), "bottleneck", E, "near the rate", 'rate = "8.55gbit"'),
        (
            load(queued_here=0, sent=4e9, resent=12),
            "bottleneck",
            E,
            "12 segments again",
            'rate = "3.8gbit"',
        ),
        (load(queued_here=0, sent=4e9), "bottleneck", W, "something else", "ss --tcp"),
        (load(dropped=5), "drops", W, "5 packets", "tc -s"),
        (replace(SOUND, unseen=("nft is not installed",)), "unseen", N, "nft", "sudo"),
    ],
)
def test_one_thing_amiss_is_one_finding(
    facts: Facts, check: str, level: Level, seen: str, mend: str
) -> None:
    (finding,) = diagnose(facts)
    assert (finding.check, finding.level) == (check, level)
    assert seen in finding.seen
    assert mend in finding.mend


def test_without_an_agent_a_foreign_root_needs_a_takeover() -> None:
    found = diagnose(replace(SOUND, agent=None, tree=FOREIGN, load=None))
    assert [(item.check, item.level) for item in found] == [("root", W), ("agent", N)]
    assert "--takeover" in found[0].mend


def test_without_an_agent_a_rate_is_one_to_start_with() -> None:
    (finding, _) = diagnose(replace(link(speed=parse_rate("1gbit")), agent=None))
    assert finding.mend == "p3-agent run --dev eth0 --rate 984mbit"


def test_the_worst_comes_first_and_notes_alone_are_no_illness() -> None:
    found = diagnose(replace(link(has_xdp=True, is_up=False), sockets=(CUBIC,)))
    assert [item.level for item in found] == [E, W, N]
    assert is_ill(found)
    assert not is_ill(found[2:])
    assert list(lines(found[:1])) == [
        "error: link: eth0 is down",
        "    ip link set dev eth0 up",
    ]


RULESET = b"""{"nftables": [
 {"metainfo": {"version": "1.0.6", "json_schema_version": 1}},
 {"table": {"family": "inet", "name": "m", "handle": 1}},
 {"chain": {"family": "inet", "table": "m", "name": "out", "handle": 1, "type": "filter",
            "hook": "output", "prio": 0, "policy": "accept"}},
 {"chain": {"family": "inet", "table": "m", "name": "sub", "handle": 2}},
 {"rule": {"family": "inet", "table": "m", "chain": "out", "handle": 4, "expr": [
   {"match": {"op": "==", "left": {"payload": {"protocol": "ip", "field": "dscp"}}, "right": 8}},
   {"counter": {"packets": 0, "bytes": 0}}, {"accept": null}]}},
 {"rule": {"family": "inet", "table": "m", "chain": "sub", "handle": 5, "expr": [
   {"mangle": {"key": {"payload": {"protocol": "ip6", "field": "dscp"}}, "value": 0}}]}},
 {"rule": {"family": "ip", "table": "mangle", "chain": "POSTROUTING", "handle": 6, "expr": [
   {"xt": {"type": "target", "name": "DSCP"}}]}},
 {"rule": {"family": "inet", "table": "p3-mark", "chain": "out", "handle": 7, "expr": [
   {"mangle": {"key": {"payload": {"protocol": "ip", "field": "dscp"}}, "value": 41}}]}},
 {"rule": {"family": "inet", "table": "m", "chain": "out", "handle": 8, "expr": [
   {"mangle": {"key": {"meta": {"key": "mark"}}, "value": 1}}]}}]}"""


def test_nftables_rules_that_set_the_dscp() -> None:
    assert [rule.delete for rule in firewall.nft_rewrites(RULESET)] == [
        "nft delete rule inet m sub handle 5",
        "nft delete rule ip mangle POSTROUTING handle 6",
    ]


def test_iptables_rules_that_set_the_dscp() -> None:
    saved = """*mangle
:POSTROUTING ACCEPT [0:0]
-A POSTROUTING -o eth0 -p tcp -j DSCP --set-dscp 0x00
-A POSTROUTING -m dscp --dscp 0x08 -j ACCEPT
COMMIT
"""
    (rule,) = firewall.iptables_rewrites("iptables-legacy", saved)
    assert rule.delete == (
        "iptables-legacy -t mangle -D POSTROUTING -o eth0 -p tcp -j DSCP --set-dscp 0x00"
    )


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_managers_that_are_told_to_set_qdiscs(tmp_path: Path) -> None:
    unseen: list[str] = []
    assert files.managers(tmp_path, 2, unseen) == ()
    write(tmp_path / "run/systemd/netif/links/2", "NETWORK_FILE=/etc/systemd/network/1.network\n")
    network = tmp_path / "etc/systemd/network/1.network"
    write(network, "[Match]\nName=eth0\n[Network]\nDHCP=yes\n")
    assert files.managers(tmp_path, 2, unseen) == ()
    write(network, "[Match]\nName=eth0\n\n[CAKE]\nBandwidth=10M\n")
    write(tmp_path / "run/NetworkManager/devices/2", "[device]\nconnection-uuid=u-1\n")
    profiles = tmp_path / "etc/NetworkManager/system-connections"
    write(profiles / "a.nmconnection", "[connection]\nid=office\nuuid=u-1\n[tc]\nqdisc.root=fq\n")
    write(profiles / "b.nmconnection", "[connection]\nid=other\nuuid=u-2\n[tc]\n")
    assert files.managers(tmp_path, 2, unseen) == (
        ManagedBy("systemd-networkd", "/etc/systemd/network/1.network", "CAKE"),
        ManagedBy(
            "NetworkManager",
            "/etc/NetworkManager/system-connections/a.nmconnection",
            "tc",
            "office",
        ),
    )
    assert unseen == []
