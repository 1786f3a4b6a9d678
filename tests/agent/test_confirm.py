"""`p3-agent run --confirm`: back by itself unless the operator says that the node still works."""

import signal
from pathlib import Path

import pytest
from agent.running import AGENT, Place, add_foreign

from p3_agent import client
from p3_agent.confirmation import seconds_of

RATE = ("--rate", "200mbit")


def test_it_goes_back_unless_confirmed(here: Place) -> None:
    before = add_foreign(here)
    with here.running(*RATE, "--takeover", "--confirm", "0.5s") as agent:
        agent.await_line("nobody ran `p3-agent confirm` within 0.5 s")
        assert agent.process.wait(10) == 1
    assert here.shown() == before
    assert list(here.state.iterdir()) == []
    done = here.run(AGENT, "confirm")
    assert done.returncode == 1
    assert "went back already" in done.stderr


def test_confirmed_it_stays(here: Place) -> None:
    before = here.shown()
    with here.running(*RATE, "--confirm", "1h") as agent:
        status = here.run(AGENT, "status")
        assert status.returncode == 0
        assert "unless `p3-agent confirm` is run" in status.stdout
        assert children(agent.pid)
        for words in ("confirmed: the bands stay\n", "confirmed already: the bands stay\n"):
            done = here.run(AGENT, "confirm")
            assert (done.returncode, done.stdout) == (0, words)
        assert "unless" not in here.run(AGENT, "status").stdout
        assert not children(agent.pid)
        assert agent.stop() == 0
    assert here.shown() == before


def test_there_may_be_nothing_to_confirm(here: Place) -> None:
    with here.running(*RATE):
        assert client.confirm(here.socket) == (
            "nothing to confirm: the agent was started without --confirm",
        )


@pytest.mark.parametrize("foreign", [False, True])
def test_killed_before_it_is_confirmed_it_goes_back_all_the_same(
    here: Place, foreign: bool
) -> None:
    before = add_foreign(here) if foreign else here.shown()
    with here.running(*RATE, "--takeover", "--confirm", "1h") as agent:
        assert agent.stop(signal.SIGKILL) == -signal.SIGKILL
        agent.await_line("put back what was there", "stdout")
        agent.await_end()
    assert here.shown() == before
    assert list(here.state.iterdir()) == []


def test_the_guard_runs_nothing_of_the_current_directory(here: Place) -> None:
    before = here.shown()
    for module in ("argparse", "p3_agent"):
        (here.directory / f"{module}.py").write_text("raise SystemExit('of the directory')")
    there = ("env", "-C", str(here.directory))
    with here.running(*RATE, "--confirm", "1h", through=there) as agent:
        agent.stop(signal.SIGKILL)
        agent.await_line("put back what was there", "stdout")
        agent.await_end()
    assert here.shown() == before


def test_killed_after_it_is_confirmed_the_bands_stay(here: Place) -> None:
    before = here.shown()
    with here.running(*RATE, "--confirm", "1h") as agent:
        assert client.confirm(here.socket) == ("confirmed: the bands stay",)
        assert agent.stop(signal.SIGKILL) == -signal.SIGKILL
        agent.await_end()
    assert "qdisc htb 7033: root" in here.shown()
    assert here.agent("restore").returncode == 0
    assert here.shown() == before


def test_a_start_that_is_refused_leaves_no_guard(here: Place) -> None:
    shown = add_foreign(here)
    done = here.agent("run", *RATE, "--confirm", "1h")
    assert done.returncode == 1
    assert "--takeover" in done.stderr
    assert here.shown() == shown


def test_times() -> None:
    assert [seconds_of(text) for text in ("60s", "1.5min", "24h")] == [60, 90, 86400]
    for text in ("60", "0s", "25h", "-1s", "1 s", "s", "1d"):
        with pytest.raises(ValueError, match="with its unit"):
            seconds_of(text)


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
