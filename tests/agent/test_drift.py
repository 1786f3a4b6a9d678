"""What others do to the tree while the agent runs."""

import re
import signal

import pytest
from agent.running import AGENT, Place, add_foreign, place

from p3_agent import client

RATE = ("--rate", "200mbit")


def tree(here: Place) -> str:
    return "\n".join(here.agent("plan", *RATE).stdout.splitlines()[1:])


DAMAGE = (
    "qdisc del dev eth0 root",
    "class change dev eth0 classid 7033:12 parent 7033:1 htb rate 9mbit ceil 10mbit",
    "filter del dev eth0 parent 7033: protocol all prio 16",
    "filter del dev eth0 parent 7033:",
    "qdisc change dev eth0 parent 7033:10 handle 7043: bfifo limit 1000",
    "qdisc replace dev eth0 parent 7033:10 handle 8: pfifo limit 5",
)


def essence(shown: str) -> list[str]:
    """What tc shows, without the order of lines and the numbers that filters get."""
    return sorted(re.sub(r"\b(fh|ht) \S+|order \d+", "", shown).splitlines())


def test_drift_is_repaired(here: Place) -> None:
    with here.running(*RATE) as agent:
        whole = essence(here.shown())
        for repairs, damage in enumerate(DAMAGE, start=1):
            here.tc(damage)
            agent.await_line("repaired")
            assert essence(here.shown()) == whole, damage
            assert client.reconcile(here.socket) == ()
            status = client.status(here.socket)
            assert status is not None
            assert status.state == "ok"
            assert status.drift.repairs == repairs
            assert status.drift.last


def test_another_root_is_left_alone_without_takeover(here: Place) -> None:
    with here.running(*RATE) as agent:
        here.tc("qdisc del dev eth0 root")
        foreign = add_foreign(here)
        agent.await_line("another program put a htb qdisc 1:")
        assert here.shown() == foreign
        status = here.run(AGENT, "status")
        assert status.returncode == 1
        assert "another program" in status.stdout
        assert agent.stop() == 0
    assert here.shown() == foreign
    assert list(here.state.iterdir()) == []


def test_the_bands_come_back_when_another_root_goes(here: Place) -> None:
    with here.running(*RATE) as agent:
        here.tc("qdisc replace dev eth0 root handle 1: htb")
        agent.await_line("another program")
        here.tc("qdisc del dev eth0 root")
        agent.await_line("eth0: ok")
        assert tree(here) == "nothing to do: it is in place"


def test_another_root_is_replaced_with_takeover(here: Place) -> None:
    before = here.shown()
    with here.running(*RATE, "--takeover") as agent:
        here.tc("qdisc replace dev eth0 root handle 1: htb")
        agent.await_line("repaired")
        assert tree(here) == "nothing to do: it is in place"
        assert agent.stop() == 0
    assert here.shown() == before


def test_it_checks_without_being_told(here: Place) -> None:
    config = here.config("reconcile_s = 0.05")
    with here.running(*RATE, "--config", config, "--verbose") as agent:
        agent.await_line("checked")
        agent.await_line("checked")


def test_an_interface_that_comes_back_gets_the_bands_again(here: Place) -> None:
    with here.running(*RATE) as agent:
        assert client.set_rate("100mbit", here.socket)
        assert here.run("ip", "link", "del", "eth0").returncode == 0
        agent.await_line("the interface eth0 (number")
        assert list(here.state.glob("*.json")) == []
        status = here.run(AGENT, "status")
        assert status.returncode == 1
        assert "was removed: the bands return when it does" in status.stdout
        with pytest.raises(client.ControlError, match="was removed"):
            client.set_rate("200mbit", here.socket)
        here.make_link()
        agent.await_line("eth0 is back")
        assert "rate 100Mbit" in here.shown()
        here.tc("qdisc del dev eth0 root")
        agent.await_line("repaired")
        assert f"pid {agent.pid}" in here.agent("restore").stderr
        assert agent.stop() == 0
    assert "7033:" not in here.shown()
    assert list(here.state.iterdir()) == []


def test_another_interface_of_the_same_number_is_begun_with_anew(here: Place) -> None:
    """One that went to another namespace and back, and one that was made in its place at once."""
    number = here.run("cat", "/sys/class/net/eth0/ifindex").stdout.strip()
    with here.running(*RATE, "--takeover") as agent, place() as other:
        other.ip("link del eth0")
        here.ip(f"link set eth0 netns {other.name}")
        agent.await_line("was removed")
        other.ip(f"link set eth0 netns {here.name}")
        agent.await_line("eth0 is back")
        assert here.run("cat", "/sys/class/net/eth0/ifindex").stdout.strip() == number
        agent.process.send_signal(signal.SIGSTOP)
        here.ip("link del eth0", f"link add eth0 index {number} type veth peer name peer0")
        before = add_foreign(here)
        agent.process.send_signal(signal.SIGCONT)
        agent.await_line("eth0 is back")
        assert tree(here) == "nothing to do: it is in place"
        assert agent.stop() == 0
    assert here.shown() == before
    assert list(here.state.iterdir()) == []


def test_a_port_that_leaves_its_bridge_is_no_other_interface(here: Place) -> None:
    with here.running(*RATE) as agent:
        agent.process.send_signal(signal.SIGSTOP)
        here.ip("link add br0 type bridge", "link set eth0 master br0", "link set eth0 nomaster")
        here.tc("qdisc del dev eth0 root")
        agent.process.send_signal(signal.SIGCONT)
        agent.await_line("eth0: repaired")
        assert agent.stop() == 0


def test_an_interface_that_comes_back_with_another_root_is_left_alone(here: Place) -> None:
    with here.running(*RATE) as agent:
        for command in (
            "ip link del eth0",
            "ip link add eth5 type veth peer name peer0",
            "tc qdisc add dev eth5 root handle 1: htb",
            "ip link set eth5 name eth0",
        ):
            assert here.run(*command.split()).returncode == 0
        agent.await_line("has a root qdisc that is not the agent's, htb 1:")
        here.tc("qdisc del dev eth0 root")
        agent.await_line("eth0 is back")
        assert tree(here) == "nothing to do: it is in place"


def test_a_program_that_undoes_every_repair_is_not_fought_without_end(here: Place) -> None:
    before = here.shown()
    with here.running(*RATE, "--takeover") as agent:
        line = ""
        while "has to wait" not in line:
            here.tc("qdisc replace dev eth0 root handle 1: pfifo")
            line = agent.await_line("eth0: ")
        status = client.status(here.socket)
        assert status is not None
        assert "keeps undoing" in status.state
        assert status.drift.repairs == 10
        assert "qdisc pfifo 1: root" in here.shown()
        assert client.reconcile(here.socket), "asked for, it is made at once"
        assert tree(here) == "nothing to do: it is in place"
        assert agent.stop() == 0
    assert here.shown() == before


def test_notifications_that_the_kernel_dropped_hide_no_drift(here: Place) -> None:
    """More changes than the socket holds, while the agent may not run."""
    flood = ("qdisc change dev lo root handle 5: pfifo limit 7",) * 4000
    here.tc("qdisc add dev lo root handle 5: pfifo")
    with here.running(*RATE) as agent:
        agent.process.send_signal(signal.SIGSTOP)
        here.tc(*flood, "qdisc del dev eth0 root")
        agent.process.send_signal(signal.SIGCONT)
        agent.await_line("the kernel dropped notifications")
        agent.await_line("repaired")
        here.tc("qdisc del dev eth0 root")
        agent.await_line("repaired")
        assert tree(here) == "nothing to do: it is in place"


def test_link_down_and_up_and_a_new_name_leave_the_tree(here: Place) -> None:
    before = here.shown()
    with here.running(*RATE, "--verbose") as agent:
        assert here.run("ip", "link", "set", "eth0", "down").returncode == 0
        assert here.run("ip", "link", "set", "eth0", "name", "eth9").returncode == 0
        assert here.run("ip", "link", "set", "eth9", "up").returncode == 0
        agent.await_line("checked")
        assert client.reconcile(here.socket) == ()
        agent.process.send_signal(signal.SIGHUP)
        assert "there is no interface 'eth0'" in agent.await_line("not reloaded")
        assert client.reconcile(here.socket) == ()
        assert here.run("ip", "link", "set", "eth9", "name", "eth0").returncode == 0
        assert agent.stop() == 0
    assert here.shown() == before
