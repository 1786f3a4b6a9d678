"""SIGHUP: the config is read anew and applied in place, or refused and the old one stays."""

import os
import pty
import signal

import pytest
from agent.running import AGENT, Agent, Place, send

from p3_agent import client
from p3_agent.messages import Status
from p3_shaper.bands import default_table

OLD = 'rate = "200mbit"\n'


def hang_up(agent: Agent) -> None:
    agent.process.send_signal(signal.SIGHUP)


def status(here: Place) -> Status:
    found = client.status(here.socket)
    assert found is not None
    return found


def test_what_changed_is_applied_in_place(here: Place) -> None:
    before = here.shown()
    with here.running("--config", here.config(OLD)) as agent:
        send(here, default_table().bands[0].tos, 3)
        here.config('rate = "100mbit"\nunmarked_share = 0.5\ndscps = [41, 39, 9]\n')
        hang_up(agent)
        agent.await_line("reloaded: eth0: htb at 100mbit")
        now = status(here)
        assert now.rate == 100_000_000
        assert [(entry.band, entry.dscp) for entry in now.classes] == [
            (0, 41),
            (1, 39),
            (2, 9),
            (None, None),
        ]
        assert now.classes[-1].guarantee == 50_000_000
        assert now.classes[0].packets == 3  # the class is the same, and so is what waits in it
        table = client.bands(here.socket)
        assert table is not None
        assert table.dscps == (41, 39, 9)
        assert client.reconcile(here.socket) == ()
        here.config('rate = "100mbit"\ngroup = "root"\nreconcile_s = 0.05\n')
        hang_up(agent)
        agent.await_line("reloaded")
        assert len(status(here).classes) == 8
        checks = status(here).reconciliations
        while status(here).reconciliations < checks + 3:
            pass
        assert agent.stop() == 0
    assert here.shown() == before


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("rate = ", "is not TOML"),
        ('rate = "200"\n', "no unit"),
        ('rate = "1mbit"\n', "guarantees"),
        ('rate = "100mbit"\nsocket = "/run/other.sock"\n', "socket cannot change"),
        ('rate = "100mbit"\nmetrics = "127.0.0.1:1"\ntakeover = true\n', "takeover, metrics"),
        ('rate = "100mbit"\ndscps = [46]\n', "risky"),
        ("bands = " + "9" * 5000, "is not TOML"),
        ('group = "\\u0000"\n', "group"),
        (None, "No such file"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_cannot_be_is_refused_and_the_old_settings_stay(
    here: Place, text: str | None, why: str
) -> None:
    with here.running("--config", here.config(OLD)) as agent:
        shown = here.shown()
        if text is None:
            (here.directory / "config.toml").unlink()
        else:
            here.config(text)
        hang_up(agent)
        assert why in agent.await_line("not reloaded, and the old settings stay: ")
        assert here.shown() == shown
        assert status(here).rate == 200_000_000
        assert client.reconcile(here.socket) == ()
        here.config('rate = "150mbit"\n')
        hang_up(agent)
        agent.await_line("reloaded: eth0: htb at 150mbit")
        assert agent.stop() == 0


def test_options_still_win_and_a_rate_that_was_set_ends(here: Place) -> None:
    config = here.config("unmarked_share = 0.2\n")
    with here.running("--rate", "200mbit", "--config", config) as agent:
        assert client.set_rate("100mbit", here.socket)
        here.config('rate = "50mbit"\nunmarked_share = 0.25\n')
        hang_up(agent)
        agent.await_line("reloaded: eth0: htb at 200mbit")
        assert status(here).classes[-1].guarantee == 50_000_000
        assert agent.stop() == 0


def test_at_a_terminal_a_hang_up_is_its_end(here: Place) -> None:
    before = here.shown()
    master, slave = pty.openpty()
    command = (AGENT, "run", *here.options, "--config", here.config(OLD))
    with os.fdopen(master), os.fdopen(slave), here.starting(*command, stdin=slave) as agent:
        assert agent.stop(signal.SIGHUP) == 0
    assert here.shown() == before


def test_nothing_is_reloaded_under_another_root(here: Place) -> None:
    with here.running("--config", here.config(OLD)) as agent:
        here.tc("qdisc del dev eth0 root", "qdisc add dev eth0 root handle 1: htb")
        agent.await_line("another program")
        here.config('rate = "100mbit"\n')
        hang_up(agent)
        agent.await_line("not reloaded")
        here.tc("qdisc del dev eth0 root")
        agent.await_line("eth0: ok")
        assert status(here).rate == 200_000_000
        assert agent.stop() == 0
