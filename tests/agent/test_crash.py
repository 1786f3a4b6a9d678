"""kill -9, and what the next start or `p3-agent restore` makes of it."""

import shutil
import signal

import msgspec
from agent.running import AGENT, FOREIGN, Place, add_foreign

from p3_agent.state import Saved

RATE = ("--rate", "200mbit")


def crash(here: Place, *arguments: str) -> None:
    with here.running(*RATE, *arguments) as agent:
        assert agent.stop(signal.SIGKILL) == -signal.SIGKILL
    assert "qdisc htb 7033: root" in here.shown()


def test_restore_puts_the_default_back(here: Place) -> None:
    before = here.shown()
    crash(here)
    done = here.agent("restore")
    assert done.returncode == 0, done.stderr
    assert "put back" in done.stdout
    assert here.shown() == before
    assert list(here.state.iterdir()) == []
    again = here.agent("restore")
    assert (again.returncode, again.stdout) == (0, "eth0: nothing to put back\n")


def test_restore_puts_a_foreign_tree_back(here: Place) -> None:
    before = add_foreign(here)
    crash(here, "--takeover")
    done = here.agent("restore")
    assert done.returncode == 0, done.stderr
    assert here.shown() == before


def test_the_next_start_adopts_and_its_stop_puts_the_first_original_back(here: Place) -> None:
    before = add_foreign(here)
    crash(here, "--takeover")
    assert here.socket.exists(), "a killed agent leaves its socket, which the next one replaces"
    with here.running("--rate", "100mbit") as agent:
        agent.await_line("taking up")
        assert "rate 100Mbit" in here.shown()
        assert agent.stop() == 0
    assert here.shown() == before


def test_a_root_lost_after_the_crash_does_not_lose_the_original(here: Place) -> None:
    before = add_foreign(here)
    crash(here, "--takeover")
    here.tc("qdisc del dev eth0 root")
    assert here.agent("restore").returncode == 0
    assert here.shown() == before


def test_a_restore_that_was_cut_short_is_finished(here: Place) -> None:
    before = add_foreign(here)
    crash(here, "--takeover")
    here.tc("qdisc del dev eth0 root")
    here.tc(*FOREIGN[:2])
    partial = here.shown()
    refused = here.agent("restore")
    assert refused.returncode == 1
    assert "another program" in refused.stderr
    assert here.shown() == partial
    path = next(here.state.glob("*.json"))
    saved = msgspec.json.decode(path.read_bytes(), type=Saved)
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(saved, restoring=True)))
    done = here.agent("run", *RATE)
    assert done.returncode == 1
    assert "run `p3-agent restore --dev eth0` first" in done.stderr
    assert here.shown() == partial
    done = here.agent("restore")
    assert done.returncode == 0, done.stderr
    assert here.shown() == before


def test_restore_leaves_what_another_program_put_there(here: Place) -> None:
    before = here.shown()
    crash(here)
    here.tc("qdisc del dev eth0 root")
    foreign = add_foreign(here)
    done = here.agent("restore")
    assert done.returncode == 1
    assert "--takeover" in done.stderr
    assert here.shown() == foreign
    assert here.agent("restore", "--takeover").returncode == 0
    assert here.shown() == before


def test_a_tree_whose_original_is_lost_is_not_adopted_unasked(here: Place) -> None:
    before = here.shown()
    crash(here)
    for path in here.state.iterdir():
        path.unlink()
    for command in ("run", "restore"):
        done = here.agent(command, *(RATE if command == "run" else ()))
        assert done.returncode == 1
        assert "--state-dir" in done.stderr
    with here.running(*RATE, "--takeover") as agent:
        assert agent.stop() == 0
    assert here.shown() == before


def test_an_original_is_its_hardware_address_s(here: Place) -> None:
    before = add_foreign(here)
    own = here.run("cat", "/sys/class/net/eth0/address").stdout.strip()
    crash(here, "--takeover")
    assert here.run("ip", "link", "set", "eth0", "address", "02:00:00:00:00:77").returncode == 0
    done = here.agent("restore")
    assert done.returncode == 1
    assert "not saved in this --state-dir" in done.stderr
    assert here.run("ip", "link", "set", "eth0", "address", own).returncode == 0
    assert here.agent("restore").returncode == 0
    assert here.shown() == before


def test_an_agent_puts_back_what_it_found_whatever_became_of_the_file(here: Place) -> None:
    before = add_foreign(here)
    with here.running(*RATE, "--takeover") as agent:
        next(here.state.glob("*.json")).write_bytes(b"")
        assert agent.stop() == 0
    assert here.shown() == before
    with here.running(*RATE, "--takeover") as agent:
        shutil.rmtree(here.state)
        assert agent.stop() == 0
    assert here.shown() == before
    assert list(here.state.iterdir()) == []


def test_restore_refuses_while_an_agent_runs(here: Place) -> None:
    with here.running(*RATE) as agent:
        done = here.agent("restore")
        assert done.returncode == 1
        assert f"pid {agent.pid}" in done.stderr
        assert here.run(AGENT, "status").returncode == 0


def test_a_damaged_original_stops_everything(here: Place) -> None:
    crash(here)
    shown = here.shown()
    path = next(here.state.glob("*.json"))
    damages = (b"", b'{"device":"eth0","snapshot":"e30="}')
    for command, content in zip((("run", *RATE), ("restore",)), damages, strict=True):
        path.write_bytes(content)
        done = here.agent(*command)
        assert done.returncode == 1
        assert len(done.stderr.splitlines()) == 1
    assert here.shown() == shown
