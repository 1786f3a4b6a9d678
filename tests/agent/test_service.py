"""The unit under a systemd that runs: it starts, reloads, watches and stops a real agent.

In the second kernel, where its users, settings and cgroups can be made and are lost at the end.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from agent.running import AGENT, PATIENCE, Place, add_foreign

from p3_agent.messages import MAX_REPLY, RegisterJob, encode

ROOT = Path(__file__).parents[2]
UNITS = ROOT / "agent" / "systemd"
SETTINGS = Path("/etc/p3-agent")
CONTROL = Path("/run/p3-agent/control.sock")
STATE = Path("/var/lib/p3-agent")
SERVICE = "p3-agent@eth0"

BOOT = """
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -o remount,bind,ro /sys
exec env container=test SYSTEMD_UNIT_PATH="$0" SYSTEMD_GENERATOR_PATH="$0" NOTIFY_SOCKET="$1" \
    /lib/systemd/systemd --system --unit=begin.target --log-target=null --show-status=no
"""
"""A read-only /sys tells systemd that no udev will report devices, as in any container."""


@dataclass(frozen=True)
class Manager:
    """A systemd, by its process id here, and what its agents wrote to standard error."""

    pid: int
    errors: Path

    def inside(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a program where systemd takes it for one of its own."""
        return subprocess.run(
            ["nsenter", f"--target={self.pid}", "--pid", "--mount", "--cgroup", *command],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    def order(self, *words: str) -> None:
        done = self.inside("systemctl", *words)
        assert done.returncode == 0, done.stderr + self.errors.read_text()

    def property(self, name: str, service: str = SERVICE) -> str:
        return self.inside("systemctl", "show", "--value", f"--property={name}", service).stdout[
            :-1
        ]

    def process(self) -> str:
        """What /proc says of the agent."""
        return self.inside("cat", f"/proc/{self.property('MainPID')}/status").stdout

    def await_status(self, words: str) -> None:
        """Ask until systemd has it from the agent; each question lets both work on."""
        for _ in range(100):
            if words in self.property("StatusText"):
                return
        raise AssertionError(self.property("StatusText") + self.errors.read_text())


@contextmanager
def systemd(here: Place, units: Path) -> Iterator[Manager]:
    """A systemd of its own processes in the namespace, which knows these `units` alone."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        told.bind(str(here.directory / "told"))
        told.settimeout(PATIENCE)
        unshare = ("unshare", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc")
        boot = ("--cgroup", "sh", "-ec", BOOT, str(units), str(here.directory / "told"))
        with subprocess.Popen(
            ["ip", "netns", "exec", here.name, *unshare, *boot], stdin=subprocess.DEVNULL
        ) as process:
            try:
                while b"READY=1" not in told.recv(4096):
                    pass
                children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
                (pid,) = map(int, children.read_text().split())
                yield Manager(pid, here.directory / "errors")
            finally:
                process.kill()


def make_units(here: Place) -> Path:
    """The unit, a drop-in for this checkout, and of the system's targets what the unit names."""
    units = here.directory / "units"
    units.mkdir()
    shutil.copy(UNITS / "p3-agent@.service", units)
    for name in ("begin", "sysinit", "basic", "shutdown"):
        (units / f"{name}.target").write_text("[Unit]\nDefaultDependencies=no\n")
    needed = {ROOT, Path(sys.prefix), Path(sys.base_prefix)}
    homes = [str(path) for path in needed if path.parts[1] in ("root", "home")]
    drop_in = units / "p3-agent@.service.d" / "checkout.conf"
    drop_in.parent.mkdir()
    drop_in.write_text(
        "[Service]\nExecStart=\n"
        f"ExecStart={AGENT} run --dev %I --takeover --config {SETTINGS}/%I.toml\n"
        f"ProtectHome=tmpfs\nBindReadOnlyPaths={' '.join(homes)}\n"
        f"StandardError=append:{here.directory}/errors\n"
        "WatchdogSec=3\nRestartSec=0\n"
    )
    return units


@pytest.fixture
def users() -> None:
    """The users that the unit names, who may reach Python and this checkout."""
    subprocess.run(["systemd-sysusers", UNITS / "p3-agent.sysusers.conf"], check=True)
    for path in (Path(AGENT), Path(sys.base_prefix, "bin")):
        for parent in path.parents:
            parent.chmod(parent.stat().st_mode | 0o011)


@pytest.mark.second_kernel
@pytest.mark.usefixtures("users")
def test_systemd_starts_reloads_watches_and_stops_it(here: Place) -> None:
    SETTINGS.mkdir()
    settings = SETTINGS / "eth0.toml"
    settings.write_text('rate = "200mbit"\n')
    before = add_foreign(here)
    with systemd(here, make_units(here)) as manager:
        manager.order("start", SERVICE)
        assert "qdisc htb 7033: root" in here.shown()  # ready, and not only started
        assert "eth0: htb at 200mbit" in manager.property("StatusText")
        process = manager.process()
        user = str(STATE.stat().st_uid)
        assert user != "0"
        assert f"Uid:\t{user}\t{user}\t{user}\t{user}\n" in process
        assert "CapEff:\t0000000000001000\nCapBnd:\t0000000000001000\n" in process
        assert "NoNewPrivs:\t1\nSeccomp:\t2\n" in process

        settings.write_text('rate = "150mbit"\n')
        manager.order("reload", SERVICE)
        manager.await_status("eth0: htb at 150mbit")

        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as job:
            job.settimeout(PATIENCE)
            job.connect(str(CONTROL))
            job.sendall(encode(RegisterJob("training")))
            assert job.recv(MAX_REPLY)
            manager.order("kill", "--signal=SIGSTOP", "--kill-whom=main", SERVICE)
            assert job.recv(MAX_REPLY) == b""  # nothing but the watchdog ends it
        manager.order("start", SERVICE)  # waits for the start that is due
        assert manager.property("NRestarts") == "1"
        assert "eth0: htb at 150mbit" in manager.property("StatusText")
        assert [*STATE.iterdir()]

        manager.order("stop", SERVICE)
        assert manager.property("Result") == "success"
        assert here.shown() == before
        assert not CONTROL.exists()
        assert [*STATE.iterdir()] == []

        settings.write_text('rate = "fast"\n')
        assert manager.inside("systemctl", "start", SERVICE).returncode != 0
        assert manager.property("ExecMainStatus") == "2"
        assert manager.property("ActiveState") == "failed"  # and not to be tried again
        assert here.shown() == before
