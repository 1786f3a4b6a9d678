"""Agents on links of other kinds: several transmit queues, VLANs, bonds."""

import pytest
from agent.running import Place, send

from p3_agent import client
from p3_agent.messages import ClassStatus
from p3_shaper.bands import default_table

RATE = ("--rate", "200mbit")
LOW = default_table().bands[-1]
VLAN = pytest.mark.needs_kinds("link:vlan")
BOND = pytest.mark.needs_kinds("link:bond")


def replace_link(here: Place, *lines: str) -> None:
    """Make another eth0, with the neighbour that `send` sends to."""
    here.ip(
        "link delete eth0",
        *lines,
        "link set eth0 up",
        "address add 10.78.0.1/24 dev eth0",
        "neigh add 10.78.0.2 lladdr 02:00:00:00:00:02 dev eth0 nud permanent",
    )


def make_bond(here: Place, mode: str) -> None:
    """A bond of two links, with numbers for names, whose other ends are up."""
    slaves = [
        line
        for number in (0, 1)
        for line in (
            f"link add wire{number} type veth peer name far{number}",
            f"link set far{number} up",
            f"link set wire{number} master eth0",
        )
    ]
    replace_link(here, f"link add eth0 type bond miimon 50 mode {mode}", *slaves)


def low_class(here: Place) -> ClassStatus:
    status = client.status(here.socket)
    assert status is not None
    (found,) = (item for item in status.classes if item.dscp == LOW.dscp)
    return found


def make_wide(here: Place) -> None:
    """A link of 4 queues."""
    queues = "numtxqueues 4 numrxqueues 4"
    replace_link(
        here, f"link add eth0 {queues} type veth peer name peer0 {queues}", "link set peer0 up"
    )


def test_mode_mq_htb_keeps_a_tree_in_every_queue_and_counts_them_as_one(here: Place) -> None:
    make_wide(here)
    before = here.shown()
    with here.running(*RATE, "--mode", "mq+htb") as agent:
        assert here.shown().count("qdisc htb") == 4
        assert "rate 50Mbit ceil 50Mbit" in here.shown()
        send(here, LOW.tos, 20)
        band = low_class(here)
        assert band.packets == 20
        assert band.guarantee == 4 * 500_000
        steps = client.set_rate("400mbit", here.socket)
        assert steps is not None
        assert {step.partition(" ")[0] for step in steps} == {"change"}
        assert agent.stop() == 0
    assert here.shown() == before


@pytest.mark.needs_kinds("prio")
def test_mode_mq_prio_orders_each_queue_without_a_rate(here: Place) -> None:
    make_wide(here)
    before = here.shown()
    with here.running("--mode", "mq+prio") as agent:
        assert here.shown().count("qdisc prio") == 4
        send(here, LOW.tos, 20)
        assert low_class(here).packets == 20
        assert agent.stop() == 0
    assert here.shown() == before


def test_mode_mq_htb_needs_several_queues(here: Place) -> None:
    refused = here.agent("run", *RATE, "--mode", "mq+htb")
    assert refused.returncode == 1
    assert "1 transmit queues: mq is for 2 to 256" in refused.stderr


@VLAN
def test_a_vlan_has_its_own_tree_but_nothing_to_order_without_a_rate(here: Place) -> None:
    replace_link(
        here,
        "link add wire type veth peer name far",
        "link set wire up",
        "link set far up",
        "link add link wire name eth0 type vlan id 10",
    )
    refused = here.agent("run", "--mode", "prio")
    assert refused.returncode == 1
    assert "as a vlan hands each packet on at once" in refused.stderr
    assert "give --rate, or run an agent on wire" in refused.stderr
    for device in ("eth0", "wire"):
        with here.running(*RATE, "--dev", device) as agent:
            send(here, LOW.tos, 20)
            assert low_class(here).packets == 20
            assert agent.stop() == 0


@BOND
def test_on_a_bond_that_spreads_the_agent_is_for_its_slaves(here: Place) -> None:
    make_bond(here, "802.3ad")
    assert "eth0 (bond, 802.3ad) spreads" in here.agent("plan", *RATE).stderr
    here.ip("link del wire0", "link del wire1")
    make_bond(here, "balance-rr")
    refused = here.agent("run", *RATE)
    assert refused.returncode == 1
    assert "eth0 (bond, balance-rr) spreads its packets over wire0 and wire1" in refused.stderr
    assert "noqueue" in here.shown()
    with here.running(*RATE, "--dev", "wire0") as agent:
        send(here, LOW.tos, 20)
        assert low_class(here).packets == 10
        assert agent.stop() == 0


@BOND
def test_a_bond_with_one_active_slave_is_shaped_as_one_link(here: Place) -> None:
    make_bond(here, "active-backup")
    with here.running(*RATE) as agent:
        send(here, LOW.tos, 20)
        assert low_class(here).packets == 20
        active = here.run("cat", "/sys/class/net/eth0/bonding/active_slave").stdout.strip()
        assert here.run("ip", "link", "set", active, "down").returncode == 0
        send(here, LOW.tos, 20)
        assert low_class(here).packets == 40
        assert agent.stop() == 0
