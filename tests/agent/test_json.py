"""What `plan` and `restore` say to programs."""

from __future__ import annotations

import json
import signal

from agent.running import Place


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
