"""`p3-agent apply`: the bands without an agent, at once or once they are confirmed."""

import json
import os
import signal
import subprocess

import pytest
from agent.running import AGENT, Place, add_foreign

RATE = ("--rate", "200mbit")


def test_it_leaves_the_bands_until_they_are_restored(here: Place) -> None:
    before = add_foreign(here)
    done = here.agent("apply", *RATE, "--takeover")
    assert done.returncode == 0, done.stderr
    assert "replace qdisc htb 7033: root default 0x1f" in done.stdout
    assert "qdisc htb 7033: root" in here.shown()
    again = json.loads(here.agent("apply", "--rate", "100mbit", "--json").stdout)
    assert again["rate"] == 100_000_000
    assert all(step.startswith("change ") for step in again["steps"])
    with here.running(*RATE) as agent:  # takes them up
        assert f"pid {agent.pid}" in here.agent("apply", *RATE).stderr
        agent.stop(signal.SIGKILL)
    assert here.agent("restore").returncode == 0
    assert here.shown() == before
    assert list(here.state.iterdir()) == []


def test_confirmed_they_stay_without_an_agent(here: Place) -> None:
    command = (AGENT, "apply", *here.options, *RATE, "--confirm", "1h")
    with here.starting(*command, ready="eth0: htb at 200mbit") as agent:
        assert "unless `p3-agent confirm` is run" in here.run(AGENT, "status").stdout
        said = json.loads(here.run(AGENT, "confirm", "--json").stdout)
        assert said == {"said": "confirmed: the bands stay"}
        agent.await_end()
        assert agent.process.wait() == 0
    assert "qdisc htb 7033: root" in here.shown()
    assert here.agent("restore").returncode == 0


@pytest.mark.parametrize(
    ("time", "how", "words"),
    [
        ("0.5s", None, "nobody ran `p3-agent confirm` within 0.5 s"),
        ("1h", signal.SIGTERM, "stopped before `p3-agent confirm` was run"),
        ("1h", signal.SIGKILL, ""),
    ],
    ids=["nobody does", "stopped", "killed"],
)
def test_otherwise_all_goes_back(
    here: Place, time: str, how: signal.Signals | None, words: str
) -> None:
    before = add_foreign(here)
    command = (AGENT, "apply", *here.options, *RATE, "--takeover", "--confirm", time)
    with here.starting(*command, ready="eth0: htb at 200mbit") as agent:
        if how is not None:
            agent.process.send_signal(how)
        agent.await_end()
        if words:
            agent.await_line(words)
        assert agent.process.wait() == (-how if how is signal.SIGKILL else 1)
    assert here.shown() == before
    assert list(here.state.iterdir()) == []


def test_a_stop_while_it_reads_its_settings_is_a_clean_one(here: Place) -> None:
    before = here.shown()
    config = here.directory / "config.toml"
    os.mkfifo(config)
    command = [
        "ip",
        "netns",
        "exec",
        here.name,
        AGENT,
        "run",
        *here.options,
        "--config",
        str(config),
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as agent:
        with config.open("w") as settings:  # opens when the agent does
            agent.send_signal(signal.SIGTERM)
            settings.write('rate = "200mbit"\n')
        assert agent.wait() == 0
    assert here.shown() == before
