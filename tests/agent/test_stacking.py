"""VLANs and bonds: where an agent may keep a tree, and what it says where it may not. Pure."""

import pytest

from p3_agent.errors import AgentError
from p3_agent.stacking import holds_queue, require_bond_of_one, require_rate
from p3_shaper.link import Link


def link(
    index: int,
    name: str,
    kind: str = "",
    *,
    parent: int = 0,
    master: int = 0,
    bond_mode: int | None = None,
) -> Link:
    return Link(
        index=index,
        name=name,
        mac="",
        mtu=1500,
        gso_max_size=65536,
        tx_queues=1,
        speed=None,
        is_up=True,
        kind=kind,
        parent=parent,
        master=master,
        bond_mode=bond_mode,
    )


SLAVES = [link(2, "eth0", master=9), link(3, "eth1", master=9), link(4, "eth2")]


@pytest.mark.parametrize(("mode", "name"), [(0, "balance-rr"), (4, "802.3ad"), (6, "balance-alb")])
def test_a_bond_that_spreads_names_the_interfaces_to_use(mode: int, name: str) -> None:
    with pytest.raises(AgentError, match=rf"{name}.* over eth0 and eth1, .* agent on each"):
        require_bond_of_one(link(9, "bond0", "bond", bond_mode=mode), SLAVES)


def test_a_team_spreads_too() -> None:
    with pytest.raises(AgentError, match=r"team0 .* over the interfaces below it"):
        require_bond_of_one(link(8, "team0", "team"), SLAVES)


def test_a_bond_that_sends_on_one_interface_is_as_good_as_it() -> None:
    require_bond_of_one(link(9, "bond0", "bond", bond_mode=1), SLAVES)
    for slave in SLAVES:
        require_bond_of_one(slave, SLAVES)


def test_without_a_rate_nothing_waits_in_what_hands_packets_on() -> None:
    vlan = link(7, "eth2.10", "vlan", parent=4)
    bond = link(9, "bond0", "bond", bond_mode=1)
    with pytest.raises(AgentError, match=r"eth2\.10, .* mode prio .* --rate, .* agent on eth2$"):
        require_rate(vlan, "prio", SLAVES)
    with pytest.raises(AgentError, match=r"agent on eth0 and eth1$"):
        require_rate(bond, "prio", SLAVES)
    require_rate(SLAVES[0], "prio", SLAVES)
    assert [holds_queue(item) for item in (vlan, bond, SLAVES[0])] == [False, False, True]
