"""An agent's normal life, and what its commands show of it."""

import asyncio
import json
import signal
import socket
from contextlib import suppress
from pathlib import Path
from threading import Thread

import pytest
from agent.running import AGENT, Place, add_foreign, send
from support.flows import MEGABYTE, Flow

from p3_agent import client
from p3_shaper.bands import BandTable, default_table
from p3_shaper.cluster import Pair

RATE = ("--rate", "200mbit")


def test_run_applies_the_tree_and_a_stop_puts_back_what_was_there(here: Place) -> None:
    before = here.shown()
    with here.running(*RATE) as agent:
        assert agent.said["stdout"].startswith("ready eth0: htb at 200mbit")
        assert "qdisc htb 7033: root" in here.shown()
        assert {path.suffix for path in here.state.iterdir()} == {".json", ".lock"}
        assert agent.stop() == 0
    assert here.shown() == before
    assert not here.socket.exists()
    assert list(here.state.iterdir()) == []


def test_an_interrupt_stops_it_too(here: Place) -> None:
    before = here.shown()
    with here.running(*RATE) as agent:
        assert agent.stop(signal.SIGINT) == 0
    assert here.shown() == before


def test_a_takeover_puts_the_foreign_tree_back(here: Place) -> None:
    before = add_foreign(here)
    with here.running(*RATE, "--takeover") as agent:
        assert "qdisc htb 7033: root" in here.shown()
        assert agent.stop() == 0
    assert here.shown() == before


def test_plan_tells_and_changes_nothing(here: Place) -> None:
    before = here.shown()
    plan = here.agent("plan", *RATE)
    assert plan.returncode == 0
    assert plan.stdout.startswith("eth0: htb at 200mbit (")
    assert "add qdisc htb 7033: root" in plan.stdout
    assert here.shown() == before
    assert not here.state.exists()
    with here.running(*RATE):
        assert "nothing to do" in here.agent("plan", *RATE).stdout
        other = here.agent("plan", "--rate", "100mbit").stdout.splitlines()[1:]
        assert other
        assert all(line.startswith("change class 7033:") for line in other)


def test_status_counts_what_each_band_sent(here: Place) -> None:
    with here.running(*RATE):
        send(here, default_table().bands[2].tos, 10)
        status = client.status(here.socket)
        assert status is not None
        assert (status.state, status.device, status.mode) == ("ok", "eth0", "htb")
        assert status.rate == 200_000_000
        assert [entry.band for entry in status.classes] == [*range(7), None]
        sent = {entry.band: (entry.packets, entry.bytes) for entry in status.classes}
        assert sent[2] == (10, 10 * 142)
        assert all(sent[band] == (0, 0) for band in (0, 1, 3, 4, 5, 6))
        assert sum(entry.guarantee or 0 for entry in status.classes) <= status.rate
        text = here.run(AGENT, "status")
        assert text.returncode == 0
        assert "200mbit" in text.stdout
        assert "7033:12" in text.stdout
        shown = json.loads(here.run(AGENT, "status", "--json").stdout)
        assert shown["classes"][2]["packets"] == 10
        assert shown["classes"][2].keys() >= {"bytes", "drops", "backlog_bytes"}


def test_status_without_an_agent(here: Place) -> None:
    done = here.run(AGENT, "status")
    assert done.returncode == 1
    assert "no agent listens" in done.stderr


def test_the_config_file_decides_what_clients_hear(here: Place) -> None:
    config = here.config('rate = "100mbit"\ndscps = [9, 7]\nunmarked_share = 0.5\n')
    with here.running("--config", config):
        assert client.bands(here.socket) == BandTable((9, 7), 0.5)
        hello = client.hello(here.socket)
        assert hello is not None
        assert hello.device == "eth0"
        status = client.status(here.socket)
        assert status is not None
        assert status.classes[-1].guarantee == 50_000_000


def test_a_new_rate_changes_classes_in_place(here: Place) -> None:
    with here.running(*RATE) as agent:
        send(here, default_table().bands[0].tos, 3)
        steps = client.set_rate("100mbit", here.socket)
        assert steps
        assert all(step.startswith("change class 7033:") for step in steps)
        status = client.status(here.socket)
        assert status is not None
        assert status.rate == 100_000_000
        assert status.classes[0].packets == 3
        assert client.reconcile(here.socket) == ()
        with pytest.raises(client.ControlError, match="guarantees") as caught:
            client.set_rate("1mbit", here.socket)
        assert caught.value.code == "failed"
        with pytest.raises(client.ControlError, match="no unit"):
            client.set_rate("100", here.socket)
        assert client.reconcile(here.socket) == ()
        assert agent.process.poll() is None


def test_a_new_rate_under_load_loses_nothing(pair: Pair, tmp_path: Path) -> None:
    node, peer = pair.nodes
    here = Place(node.name, tmp_path)
    first, fourth = default_table().bands[0].tos, default_table().bands[3].tos

    async def work() -> None:
        async with (
            Flow.between(node, peer, socket.AF_INET, first) as urgent,
            Flow.between(node, peer, socket.AF_INET6, fourth) as patient,
        ):
            await urgent.arrived(2 * MEGABYTE)
            for rate in ("150mbit", "600mbit", "2gbit", "100mbit", "300mbit"):
                steps = await asyncio.to_thread(client.set_rate, rate, here.socket)
                assert steps
                assert all(step.startswith("change ") for step in steps)
                await urgent.arrived(2 * MEGABYTE)
            status = await asyncio.to_thread(client.status, here.socket)
            assert status is not None
            assert {item.drops for item in status.classes} == {0}
            assert urgent.lost() <= 0
            assert patient.lost() <= 0

    with here.running(*RATE):
        asyncio.run(work())


def test_a_stop_amid_changes_puts_back_what_was_there(here: Place) -> None:
    before = add_foreign(here)
    with here.running(*RATE, "--takeover") as agent:

        def change() -> None:
            with suppress(client.ControlError):
                while client.set_rate("100mbit", here.socket) is not None:
                    client.set_rate("200mbit", here.socket)

        threads = [Thread(target=change) for _ in range(3)]
        for thread in threads:
            thread.start()
        assert client.reconcile(here.socket) == ()
        assert agent.stop() == 0
        for thread in threads:
            thread.join()
    assert here.shown() == before


@pytest.mark.needs_kinds("prio")
@pytest.mark.parametrize(
    ("options", "tree"),
    [(("--mode", "prio"), "qdisc prio 7033: root"), (RATE, "qdisc prio 7035: parent 7033:2")],
    ids=["prio", "more bands than htb can order"],
)
def test_modes_with_prio(here: Place, options: tuple[str, ...], tree: str) -> None:
    before = here.shown()
    config = here.config(f"dscps = {[*range(5, 20)]}")
    with here.running("--config", config, *options) as agent:
        assert tree in here.shown()
        assert "bands 1" in here.shown()
        assert agent.stop() == 0
    assert here.shown() == before


@pytest.mark.lacks_kinds("ets")
def test_a_mode_that_the_kernel_cannot_do_is_refused_and_says_which_module(here: Place) -> None:
    before = here.shown()
    done = here.agent("run", "--mode", "ets")
    assert done.returncode == 1
    assert "this kernel has no sch_ets: load it (modprobe sch_ets)" in done.stderr
    assert here.shown() == before
