"""What commands say to programs, where no other test has it."""

from __future__ import annotations

import json
import signal

from agent.running import AGENT, Place


def test_plan_and_restore_in_json(here: Place) -> None:
    planned = json.loads(here.agent("plan", "--rate", "200mbit", "--json").stdout)
    assert (planned["device"], planned["mode"], planned["rate"]) == ("eth0", "htb", 200_000_000)
    assert "200mbit was asked for" in planned["reason"]
    assert "add qdisc htb 7033: root default 0x1f" in planned["steps"]
    with here.running("--rate", "200mbit") as agent:
        assert json.loads(here.agent("plan", "--rate", "200mbit", "--json").stdout)["steps"] == []
        agent.stop(signal.SIGKILL)
    restored = json.loads(here.agent("restore", "--json").stdout)
    assert restored["device"] == "eth0"
    assert any("7033:" in step for step in restored["steps"])
    assert json.loads(here.agent("restore", "--json").stdout)["steps"] == []


def test_run_and_set_rate_in_json(here: Place) -> None:
    command = (AGENT, "run", *here.options, "--rate", "200mbit", "--json")
    with here.starting(*command, ready='"device":"eth0","mode":"htb","rate":200000000') as agent:
        said = here.run(AGENT, "set-rate", "100mbit", "--json")
        assert said.returncode == 0, said.stderr
        changed = json.loads(said.stdout)
        assert changed["rate"] == 100_000_000
        assert all(step.startswith("change class ") for step in changed["steps"])
        assert here.run(AGENT, "set-rate", "150mbit").stdout.startswith("now 150mbit\nchange ")
        assert here.run(AGENT, "set-rate", "150").returncode == 2
        assert here.run(AGENT, "set-rate", "1mbit").returncode == 1
        assert agent.stop() == 0
    assert "no agent listens" in here.run(AGENT, "set-rate", "100mbit").stderr


def test_p3_shape_in_json(here: Place) -> None:
    shape = AGENT.replace("p3-agent", "p3-shape")
    planned = json.loads(here.run(shape, "eth0", "200mbit", "--dry-run", "--json").stdout)
    made = json.loads(here.run(shape, "eth0", "200mbit", "--json").stdout)
    assert planned == {**made, "dry_run": True}
    assert (made["device"], made["direction"], made["rate"]) == ("eth0", "out", 200_000_000)
    assert "root" in made["steps"][0]
    cleared = json.loads(here.run(shape, "eth0", "--clear", "--json").stdout)
    assert (cleared["rate"], len(cleared["steps"])) == (None, 1)
