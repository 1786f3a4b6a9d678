"""Real agents in throwaway network namespaces, for the tests beside this file."""

import itertools
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from p3_agent import client
from p3_agent.messages import ControlError
from p3_shaper.namespace import socket_in

AGENT = str(Path(sys.executable).with_name("p3-agent"))
PATIENCE = 60.0
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Place:
    """A namespace with one link, `eth0`, and a directory for sockets and state."""

    name: str
    directory: Path

    @property
    def socket(self) -> Path:
        return self.directory / "control.sock"

    @property
    def state(self) -> Path:
        return self.directory / "state"

    def make_link(self) -> None:
        """Make eth0, up, with a neighbour to send to."""
        self.ip(
            "link add eth0 type veth peer name peer0",
            "addr add 10.78.0.1/24 dev eth0",
            "neigh add 10.78.0.2 lladdr 02:00:00:00:00:02 dev eth0 nud permanent",
            "link set eth0 up",
            "link set peer0 up",
        )

    def ip(self, *commands: str) -> None:
        """Give ip commands that must all succeed."""
        subprocess.run(
            ["ip", "-netns", self.name, "-batch", "-"],
            input="\n".join(commands),
            text=True,
            check=True,
        )

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a program in the namespace to its end; never raises for its status."""
        return subprocess.run(
            ["ip", "netns", "exec", self.name, *command],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
            env=self.environment,
        )

    def tc(self, *commands: str) -> str:
        """What tc says to commands that must all succeed."""
        done = subprocess.run(
            ["tc", "-netns", self.name, "-details", "-batch", "-"],
            input="\n".join(commands),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def shown(self) -> str:
        """Everything that tc shows of eth0, without the one counter among it."""
        text = self.tc(*(f"{kind} show dev eth0" for kind in ("qdisc", "class", "filter")))
        return re.sub(r"direct_packets_stat \d+ ", "", text)

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "P3_AGENT_SOCKET": str(self.socket)}

    def agent(self, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`p3-agent run`, `plan` or `restore` on eth0, to its end."""
        return self.run(AGENT, command, *self.options, *arguments)

    def config(self, text: str) -> str:
        """The name of a config file with `text`."""
        path = self.directory / "config.toml"
        path.write_text(text)
        return str(path)

    @contextmanager
    def running(
        self,
        *arguments: str,
        through: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> Iterator["Agent"]:
        """An agent on eth0 that has said it is ready; stopped at the end if it still runs.

        `through` is a command that runs the agent, like prlimit(1).
        """
        command = (*through, AGENT, "run", *self.options, *arguments)
        with self.starting(*command, environment=environment) as agent:
            yield agent

    @contextmanager
    def starting(
        self,
        *command: str,
        environment: Mapping[str, str] | None = None,
        ready: str = "ready",
        stdin: int = subprocess.DEVNULL,
    ) -> Iterator["Agent"]:
        """The same of another program, which says that it is `ready` on its standard output."""
        with subprocess.Popen(
            ["ip", "netns", "exec", self.name, *command],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**self.environment, **(environment or {})},
        ) as process:
            agent = Agent(process)
            try:
                agent.await_line(ready, "stdout")
                yield agent
            finally:
                if process.poll() is None:
                    process.send_signal(signal.SIGTERM)
                    try:
                        process.wait(PATIENCE)
                    except subprocess.TimeoutExpired:
                        process.kill()

    @property
    def options(self) -> tuple[str, ...]:
        return ("--dev", "eth0", "--state-dir", str(self.state))


class Agent:
    """A running agent and what it has said."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        self.process = process
        self._streams = {"stdout": process.stdout.fileno(), "stderr": process.stderr.fileno()}
        self.said = {"stdout": "", "stderr": ""}
        self._read_to = {"stdout": 0, "stderr": 0}

    @property
    def pid(self) -> int:
        return self.process.pid

    def await_line(self, part: str, stream: str = "stderr") -> str:
        """The next line with `part` in it; fails when the agent ends or says nothing for long."""
        while True:
            start = self._read_to[stream]
            end = self.said[stream].find("\n", start)
            if end >= 0:
                self._read_to[stream] = end + 1
                line = self.said[stream][start:end]
                if part in line:
                    return line
                continue
            ready, _, _ = select.select([self._streams[stream]], [], [], PATIENCE)
            data = os.read(self._streams[stream], 65536) if ready else b""
            assert data, f"no {part!r} on {stream}: {self.said} {self._errors()}"
            self.said[stream] += data.decode()

    def await_end(self, stream: str = "stdout") -> None:
        """Wait until nobody can write there any more: the agent and all that it started ended."""
        while True:
            ready, _, _ = select.select([self._streams[stream]], [], [], PATIENCE)
            assert ready, f"{stream} stays open: {self.said}"
            data = os.read(self._streams[stream], 65536)
            if not data:
                return
            self.said[stream] += data.decode()

    def _errors(self) -> str:
        ready, _, _ = select.select([self._streams["stderr"]], [], [], 0)
        return os.read(self._streams["stderr"], 65536).decode() if ready else ""

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to end and wait; its exit status."""
        self.process.send_signal(how)
        return self.process.wait(PATIENCE)

    def descriptors(self) -> int:
        """How many files it has open."""
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))


def settled(agent: Agent, where: str, wanted: int) -> bool:
    """Whether the agent comes back to `wanted` open files; each question lets it work on."""
    for _ in range(1000):
        with suppress(ControlError):  # still busy
            client.hello(where)
        if agent.descriptors() <= wanted:
            return True
    return False


@contextmanager
def place() -> Iterator[Place]:
    """Make a namespace with a veth pair and a directory that all may enter; removed at the end."""
    name = f"p3t-{os.getpid()}-agent{next(_numbers)}"
    with tempfile.TemporaryDirectory(prefix="p3t-") as directory:
        Path(directory).chmod(0o755)
        subprocess.run(["ip", "netns", "add", name], check=True)
        try:
            made = Place(name, Path(directory))
            made.make_link()
            yield made
        finally:
            _delete(name)


def _delete(name: str) -> None:
    """Remove a namespace. The unlink fails now and then while another `ip netns` is at work."""
    for _ in range(5):
        if subprocess.run(["ip", "netns", "del", name], check=False).returncode == 0:
            return
    raise AssertionError(f"the namespace {name} cannot be removed")


def send(here: Place, tos: int, count: int) -> None:
    """Send `count` datagrams of 100 bytes out of eth0, marked."""
    with socket_in(here.name, socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos)
        for _ in range(count):
            sender.sendto(b"x" * 100, ("10.78.0.2", 9))


FOREIGN = (
    "qdisc add dev eth0 root handle 1: htb default 0x20",
    "class add dev eth0 parent 1: classid 1:1 htb rate 500mbit burst 128k",
    "class add dev eth0 parent 1:1 classid 1:20 htb rate 100mbit ceil 500mbit prio 3",
    "qdisc add dev eth0 parent 1:20 handle 20: bfifo limit 1mb",
    "filter add dev eth0 parent 1: protocol ip prio 5 u32 match ip dport 80 0xffff flowid 1:20",
)


def add_foreign(here: Place) -> str:
    """Put another program's tree on eth0; what tc shows then."""
    here.tc(*FOREIGN)
    return here.shown()
