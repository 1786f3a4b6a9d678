"""Runs one program on every node of a cluster, beside agents where wanted."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from experiments.messages import Event, Failed, Finished, Measured, Started, heard
from experiments.scratch import scratch
from experiments.watch import Child, Ended, Line, Watch
from p3_shaper.cluster import Cluster, Node
from p3_shaper.rates import Rate

SCRIPTS = Path(__file__).resolve().parents[1]
PATIENCE_S = 90.0
"""Seconds without a sign of life after which a launch is given up."""
AGENT_PATIENCE_S = 20.0
FAREWELL_S = 15.0
"""Seconds that the other nodes have to say what they noticed after one has failed."""
_FIRST_PORT = 29500
# A port of its own for every launch: the last one's may still be in TIME_WAIT.
_ports = itertools.count(_FIRST_PORT)


class LaunchError(RuntimeError):
    """A program or an agent failed on a node; the message says which, how, and where its log is."""


@dataclass(frozen=True, slots=True)
class Program:
    """A module to run on every node, and what its run is called in logs.

    torchrun runs it, or `interpreter`, if given, with the variables that torchrun would set.
    `environment` has more of them.
    """

    name: str
    module: str
    arguments: tuple[str, ...]
    interpreter: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


def run(
    cluster: Cluster,
    program: Program,
    logs: Path,
    *,
    agent_rate: Rate | None = None,
    on_event: Callable[[Event], None] = lambda _: None,
) -> list[Event]:
    """Run `program` on all nodes to its end; returns every event that its ranks told.

    With `agent_rate`, a p3-agent shapes every node's device to that rate meanwhile. Error output
    goes to files in `logs`. Raises LaunchError when a node fails, or after PATIENCE_S without a
    sign of life; no process is left either way.
    """
    with surroundings(cluster, logs, agent_rate) as around:
        return start(cluster, program, around, on_event=on_event).follow()


def start(
    cluster: Cluster,
    program: Program,
    around: Surroundings,
    *,
    on_event: Callable[[Event], None] = lambda _: None,
    input_lines: bool = False,
) -> Run:
    """Start `program` on all nodes; with `input_lines` its ranks can be told lines."""
    port = next(_ports)
    children = []
    for node, environment in zip(cluster.nodes, around.environments, strict=True):
        env = {**environment, **program.environment}
        if program.interpreter is None:
            argv = _torchrun_argv(cluster, node.index, port, program)
        else:
            argv = [str(program.interpreter), "-m", program.module, *program.arguments]
            env |= rank_environment(cluster, node.index, port)
        where = (around.logs, env)
        children.append(
            _start(around.watch, node, program.name, argv, where, input_lines=input_lines)
        )
    return Run(program, children, around.watch, on_event)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What programs on a cluster's nodes have: a watch over them, each node's environment, a
    folder for logs."""

    watch: Watch
    environments: Sequence[Mapping[str, str]]
    logs: Path


@contextmanager
def surroundings(cluster: Cluster, logs: Path, agent_rate: Rate | None) -> Iterator[Surroundings]:
    """What programs have, and agents on all nodes if there is a rate."""
    logs.mkdir(parents=True, exist_ok=True)
    with scratch() as directory, Watch() as watch:
        sockets = [directory / f"agent{node.index}.sock" for node in cluster.nodes]
        environments = [
            _environment(node, socket) for node, socket in zip(cluster.nodes, sockets, strict=True)
        ]
        around = Surroundings(watch, environments, logs)
        if agent_rate is None:
            yield around
        else:
            with agents(around, cluster, agent_rate):
                yield around


def _start(
    watch: Watch,
    node: Node,
    name: str,
    argv: Sequence[str],
    where: tuple[Path, Mapping[str, str]],
    *,
    input_lines: bool = False,
) -> Child:
    logs, env = where
    log = logs / f"{name}{node.index}.log"
    # setpriv: a child must not outlive a launcher that is killed outright.
    with log.open("w") as errors:
        process = node.popen(
            ["setpriv", "--pdeathsig", "KILL", *argv],
            stdin=subprocess.PIPE if input_lines else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=env,
        )
    return watch.add(f"{name} on node {node.index}", process, log)


@contextmanager
def agents(around: Surroundings, cluster: Cluster, rate: Rate) -> Iterator[None]:
    """An agent on every node, its tree applied; on leaving, the old tree is back. LaunchError."""
    started = []
    for node, environment in zip(cluster.nodes, around.environments, strict=True):
        socket = Path(environment["P3_AGENT_SOCKET"])
        argv = [str(Path(sys.executable).parent / "p3-agent"), "run", "--takeover"]
        argv += ["--dev", node.device, "--rate", str(rate), "--socket", str(socket)]
        argv += ["--state-dir", str(socket.with_suffix(".state"))]
        started.append(_start(around.watch, node, "p3-agent", argv, (around.logs, os.environ)))
    _await_ready(around.watch, started)
    yield
    for ended in around.watch.end(started):
        if ended.status != 0:
            raise LaunchError(_unexpected(ended))


def _await_ready(watch: Watch, agents: Sequence[Child]) -> None:
    waiting = set(agents)
    while waiting:
        happened = watch.wait(AGENT_PATIENCE_S)
        if not happened:
            titles = ", ".join(sorted(child.title for child in waiting))
            raise LaunchError(
                f"{titles}: not ready after {AGENT_PATIENCE_S:.0f} s (log: {agents[0].log})"
            )
        for event in happened:
            if isinstance(event, Ended):
                raise LaunchError(_unexpected(event))
            if event.text.startswith("ready"):
                waiting.discard(event.child)


def _unexpected(ended: Ended) -> str:
    child = ended.child
    how = (
        f"was killed by signal {-ended.status}"
        if ended.status < 0
        else (f"ended with status {ended.status}")
    )
    return f"{child.title} {how}: {child.last_words()} (log: {child.log})"


def _torchrun_argv(cluster: Cluster, index: int, port: int, program: Program) -> list[str]:
    return [
        *(sys.executable, "-m", "torch.distributed.run"),
        *("--nnodes", str(len(cluster.nodes)), "--nproc-per-node", "1"),
        *("--node-rank", str(index), "--monitor-interval", "0.1"),
        *("--master-addr", cluster.nodes[0].address, "--master-port", str(port)),
        *("-m", program.module, *program.arguments),
    ]


def rank_environment(cluster: Cluster, rank: int, port: int) -> dict[str, str]:
    """What torchrun tells a rank, one on each node."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(len(cluster.nodes)),
        "MASTER_ADDR": cluster.nodes[0].address,
        "MASTER_PORT": str(port),
    }


def _environment(node: Node, socket: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(SCRIPTS),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": node.device,
        # Also without an agent: the machine's own, if any, is not this node's.
        "P3_AGENT_SOCKET": str(socket),
        # torchrun leaves a directory there each time.
        "TMPDIR": str(socket.parent),
    }


@dataclass(slots=True)
class Run:
    """What is known of a program's run while it goes on. Methods raise LaunchError."""

    program: Program
    children: Sequence[Child]
    watch: Watch
    on_event: Callable[[Event], None]
    told: list[Event] = field(default_factory=list)
    bad: list[Ended] = field(default_factory=list)
    running: set[Child] = field(init=False)

    def __post_init__(self) -> None:
        self.running = set(self.children)

    def follow(self) -> list[Event]:
        """Every event up to the end of the last child."""
        self._until(lambda: not self.running)
        return self.told

    def tell(self, line: str) -> list[Event]:
        """Give every rank a line; every event up to the last rank's result."""
        self.told.clear()
        for child in self.children:
            assert child.process.stdin is not None
            with suppress(BrokenPipeError):  # its end is heard of below
                child.process.stdin.write(line + "\n")
                child.process.stdin.flush()
        self._until(lambda: len(finished(self.told)) == len(self.children))
        return self.told

    def end(self) -> None:
        """No more lines: wait for the children, who take that for the end."""
        for child in self.children:
            assert child.process.stdin is not None
            with suppress(BrokenPipeError):
                child.process.stdin.close()
        self.follow()

    def _until(self, done: Callable[[], bool]) -> None:
        patience = PATIENCE_S
        while (self._failed or not done()) and self.running:
            happened = self.watch.wait(patience)
            if not happened:
                break
            for event in happened:
                self._take(event)
            if self._failed:
                patience = FAREWELL_S
        if self._failed:
            raise LaunchError(self._what_failed())
        if not done():
            raise LaunchError(self._silence())

    @property
    def _failed(self) -> bool:
        return bool(self.bad) or any(isinstance(event, Failed) for event in self.told)

    def _silence(self) -> str:
        titles = ", ".join(sorted(child.title for child in self.running))
        logs = self.children[0].log.parent
        return f"no sign of life for {PATIENCE_S:.0f} s from {titles} (logs: {logs})"

    def _take(self, event: Line | Ended) -> None:
        if isinstance(event, Ended):
            if event.status != 0 or event.child not in self.running:
                self.bad.append(event)
            self.running.discard(event.child)
        elif event.child in self.running and (told := heard(event.text)) is not None:
            self.told.append(told)
            self.on_event(told)

    def _what_failed(self) -> str:
        """The node that failed without noticing is the cause; the others saw it go."""
        noticed = {told.rank: told.message for told in self.told if isinstance(told, Failed)}
        numbers = {child: rank for rank, child in enumerate(self.children)}
        silent = [ended for ended in self.bad if numbers.get(ended.child) not in noticed]
        if silent:
            said = "".join(f"; node {rank}: {text}" for rank, text in sorted(noticed.items()))
            return self._silent_end(silent[0], numbers) + said
        rank, message = next(iter(noticed.items()))
        return f"{self.program.name} failed on node {rank}: {message} (log: {self._log(rank)})"

    def _silent_end(self, ended: Ended, numbers: Mapping[Child, int]) -> str:
        rank = numbers.get(ended.child)
        pids = [told.pid for told in self.told if isinstance(told, Started) and told.rank == rank]
        if rank is None or not pids:
            return _unexpected(ended)
        return (
            f"{ended.child.title} (process {pids[0]}) was killed before it was done "
            f"(log: {ended.child.log})"
        )

    def _log(self, rank: int) -> Path:
        return self.children[rank].log


def finished(told: Sequence[Event]) -> list[Finished]:
    """Every rank's result, in rank order."""
    return sorted((t for t in told if isinstance(t, Finished)), key=lambda result: result.rank)


def measured(told: Sequence[Event]) -> list[Measured]:
    """Every measured round, in the order in which they were made."""
    return [event for event in told if isinstance(event, Measured)]
