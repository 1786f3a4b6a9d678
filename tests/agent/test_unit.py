"""The service: its unit file as systemd reads it, and an agent with the rights that it gives."""

import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from agent.running import AGENT, Place, add_foreign

from p3_agent import client

UNITS = Path(__file__).parents[2] / "agent" / "systemd"
UNIT = UNITS / "p3-agent@.service"
USER = 64321
BOUND = 15
"""What `systemd-analyze security` may say at most, times ten: 0 is no exposure, 100 is all."""

OPEN = """
for closed in $0; do
    mount -t tmpfs none /mnt
    mkdir /mnt/old
    mount --bind "$closed" /mnt/old
    mount -t tmpfs -o mode=755 none "$closed"
    for entry in /mnt/old/* /mnt/old/.[!.]*; do
        [ -d "$entry" ] || continue
        mkdir "$closed/${entry##*/}"
        mount --bind "$entry" "$closed/${entry##*/}"
    done
    umount /mnt/old
done
exec "$@"
"""
"""Lets a user into the directories $0, like /root, in the mount namespace of `ip netns exec`."""


def closed() -> str:
    """The directories above Python and the project that only root may enter."""
    needed = (Path(AGENT), Path(sys.base_prefix, "bin"), UNITS)
    above = {parent for path in needed for parent in path.parents}
    return " ".join(str(path) for path in sorted(above) if not path.stat().st_mode & 0o001)


RIGHTS = (
    "sh",
    "-ec",
    OPEN,
    closed(),
    "setpriv",
    f"--reuid={USER}",
    f"--regid={USER}",
    "--clear-groups",
    "--inh-caps=-all,+net_admin",
    "--ambient-caps=-all,+net_admin",
    "--bounding-set=-all,+net_admin",
    "--no-new-privs",
)
"""User=, AmbientCapabilities=, CapabilityBoundingSet= and NoNewPrivileges= of the unit."""


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", *arguments], capture_output=True, text=True, check=False
    )


def test_the_unit_exposes_little() -> None:
    done = analyze("security", "--offline=true", f"--threshold={BOUND}", str(UNIT))
    assert done.returncode == 0, done.stdout + done.stderr
    assert analyze("security", "--offline=true", "--threshold=0", str(UNIT)).returncode == 1


def test_systemd_takes_the_unit_and_the_drop_in_for_a_virtual_environment(tmp_path: Path) -> None:
    shutil.copy(UNIT, tmp_path)
    drop_in = tmp_path / f"{UNIT.name}.d" / "path.conf"
    drop_in.parent.mkdir()
    drop_in.write_text(
        f"[Service]\nExecStart=\nExecStart={AGENT} run --dev %I --config /etc/p3-agent/%I.toml\n"
    )
    done = analyze("verify", "--man=no", str(tmp_path / "p3-agent@eth0.service"))
    assert (done.returncode, done.stderr) == (0, "")


def test_the_users_are_made(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    lines = (UNITS / "p3-agent.sysusers.conf").read_bytes()
    subprocess.run(["systemd-sysusers", f"--root={tmp_path}", "-"], input=lines, check=True)
    assert (tmp_path / "etc/passwd").read_text().startswith("p3-agent:x:")
    groups = (tmp_path / "etc/group").read_text().splitlines()
    assert {line.partition(":")[0] for line in groups} == {"p3", "p3-agent"}


@pytest.fixture
def theirs(here: Place) -> Place:
    """A place whose directory is the user's, as RuntimeDirectory= and StateDirectory= are."""
    shutil.chown(here.directory, USER, USER)
    return here


def test_an_agent_lives_with_net_admin_alone(theirs: Place) -> None:
    before = add_foreign(theirs)
    config = theirs.config('rate = "200mbit"\n')
    metrics = theirs.directory / "metrics.sock"
    options = ("--takeover", "--config", config, "--metrics", f"unix:{metrics}")
    with theirs.running(*options, through=RIGHTS) as agent:
        assert Path(f"/proc/{agent.pid}/exe").readlink() == Path(sys.executable).resolve()
        process = Path(f"/proc/{agent.pid}/status").read_text()
        assert f"Uid:\t{USER}\t{USER}\t{USER}\t{USER}\n" in process
        assert "CapEff:\t0000000000001000\n" in process
        assert "qdisc htb 7033: root" in theirs.shown()
        assert theirs.run(AGENT, "status").returncode == 0
        assert client.set_rate("100mbit", theirs.socket)
        theirs.tc("qdisc del dev eth0 root")
        agent.await_line("repaired")
        theirs.config('rate = "150mbit"\n')
        agent.process.send_signal(signal.SIGHUP)
        agent.await_line("reloaded: eth0: htb at 150mbit")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as scraper:
            scraper.connect(str(metrics))
        assert agent.stop() == 0
    assert theirs.shown() == before
    assert not theirs.socket.exists()
    assert not metrics.exists()


def test_what_it_leaves_when_killed_is_restored_with_the_same_rights(theirs: Place) -> None:
    before = add_foreign(theirs)
    with theirs.running("--rate", "200mbit", "--takeover", through=RIGHTS) as agent:
        agent.process.kill()
        agent.process.wait(20)
    assert theirs.shown() != before
    done = theirs.run(*RIGHTS, AGENT, "restore", *theirs.options)
    assert done.returncode == 0, done.stderr
    assert theirs.shown() == before


def test_without_net_admin_it_says_what_it_needs(theirs: Place) -> None:
    none = tuple(right.replace(",+net_admin", "") for right in RIGHTS)
    done = theirs.run(*none, AGENT, "run", *theirs.options, "--rate", "200mbit")
    assert done.returncode == 1
    assert "CAP_NET_ADMIN" in done.stderr
