"""`p3-agent probe` over a chain of real routers."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from agent.running import AGENT, PATIENCE, Agent
from support.chain import Chain, chain, within

from p3_shaper.bands import DEFAULT_DSCPS

ENVIRONMENT = {**os.environ, "P3_AGENT_SOCKET": "/nonexistent/p3-agent.sock"}
VERSIONS = pytest.mark.parametrize("version", [4, 6])


@pytest.fixture(scope="module")
def path() -> Iterator[Chain]:
    """Node 0, three routers, and node 4."""
    with chain(3) as made:
        yield made


class Shown:
    """What `probe` printed: `rows` are what each hop saw, the far end last."""

    def __init__(self, code: int, text: str) -> None:
        found = json.loads(text)
        self.code = code
        self.sentence: str = found["verdict"]
        self.survives: bool | None = found["survives"]
        self.rows = [
            {answer["sent"]: answer["seen"] for answer in hop["answers"]}
            for hop in (*found["hops"], found["far"])
        ]
        self.far = {answer["kind"] for answer in found["far"]["answers"]}


def run(
    path: Chain, *arguments: str, prefix: tuple[str, ...] = (), **env: str
) -> subprocess.CompletedProcess[str]:
    """`p3-agent probe` at node 0, to its end."""
    return subprocess.run(
        [*within(path.nodes[0]), *prefix, AGENT, "probe", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**ENVIRONMENT, **env},
    )


def probe(path: Chain, version: int, *arguments: str) -> Shown:
    done = run(path, path.address(path.far, version), "--json", *arguments)
    assert done.stderr == ""
    return Shown(done.returncode, done.stdout)


@contextmanager
def listening(path: Chain, *arguments: str) -> Iterator[Agent]:
    """A far end that answers."""
    with subprocess.Popen(
        [*within(path.nodes[path.far]), AGENT, "probe", "--listen", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        listener = Agent(process)
        try:
            listener.await_line("ready", "stdout")
            yield listener
        finally:
            process.kill()


def every(*dscps: int) -> dict[int, int]:
    return {dscp: dscp for dscp in (0, *dscps)}


def place(path: Chain, hop: int, version: int) -> str:
    return f"hop {hop} ({path.address(hop, version)})"


@VERSIONS
def test_marks_that_survive(path: Chain, version: int) -> None:
    shown = probe(path, version)
    assert shown.rows == [every(*DEFAULT_DSCPS)] * 4
    assert (shown.code, shown.survives, shown.far) == (0, True, {"closed port"})


@VERSIONS
@pytest.mark.parametrize(("hook", "first"), [("prerouting", 2), ("forward", 3)])
def test_the_router_that_bleaches_is_named(
    path: Chain, version: int, hook: str, first: int
) -> None:
    field = "ip" if version == 4 else "ip6"
    with path.rules(2, f"{hook} {field} dscp != 9 {field} dscp set cs0"):
        shown = probe(path, version, "--dscp", "41,9")
    seen = [{0: 0, 41: 41 if hop < first else 0, 9: 9} for hop in (1, 2, 3, 4)]
    assert shown.rows == seen
    assert (shown.code, shown.survives) == (1, False)
    between = f"between {place(path, first - 1, version)} and {place(path, first, version)}"
    assert f"DSCP 41 turned into 0 {between}" in shown.sentence
    assert "DSCP 9 arrived as sent" in shown.sentence


@VERSIONS
def test_a_silent_router_widens_the_stretch(path: Chain, version: int) -> None:
    icmp, field = ("icmp", "ip") if version == 4 else ("icmpv6", "ip6")
    with (
        path.rules(1, f"forward {field} dscp 41 {field} dscp set 1"),
        path.rules(2, f"output {icmp} type time-exceeded drop"),
    ):
        shown = probe(path, version, "--dscp", "41")
    assert shown.rows == [every(41), {}, {0: 0, 41: 1}, {0: 0, 41: 1}]
    between = f"between {place(path, 1, version)} and {place(path, 3, version)}"
    assert f"41 turned into 1 {between}: hop 1 sending, hop 2 (no answer), hop 3" in shown.sentence
    assert shown.code == 1


def test_this_host_may_be_the_one(path: Chain) -> None:
    with path.rules(0, "output ip dscp 41 ip dscp set 0"):
        shown = probe(path, 4, "--dscp", "41")
    assert "between this host and hop 1" in shown.sentence


@VERSIONS
def test_a_listener_tells_where_icmp_does_not(path: Chain, version: int) -> None:
    with path.rules(4, "output icmp type 3 drop\noutput icmpv6 type 1 drop"):
        shown = probe(path, version, "--dscp", "41", "--max-hops", "4")
        assert (shown.code, shown.survives) == (1, None)
        assert f"to {place(path, 3, version)}, and then nothing answered" in shown.sentence
        with listening(path) as listener:
            shown = probe(path, version, "--dscp", "41")
            assert (shown.code, shown.survives, shown.far) == (0, True, {"listener"})
            assert shown.rows == [every(41)] * 4
            with path.rules(3, "forward ip dscp set 7\nforward ip6 dscp set 7"):
                shown = probe(path, version, "--dscp", "41")
            assert shown.rows[-1] == {0: 7, 41: 7}
            assert "41 turned into 7 between" in shown.sentence
            assert "and the far end" in shown.sentence
            listener.stop()


def test_marks_that_are_dropped_or_refused(path: Chain) -> None:
    with path.rules(
        2, "forward ip dscp 41 drop\nforward ip dscp 9 reject with icmp host-prohibited"
    ):
        shown = probe(path, 4, "--dscp", "41,39,9")
    assert shown.survives is False
    assert f"DSCP 41 came as sent to {place(path, 2, 4)}, and then nothing" in shown.sentence
    assert "DSCP 9" in shown.sentence
    assert "refused it (host-prohibited)" in shown.sentence
    assert "DSCP 39 arrived as sent" in shown.sentence


@VERSIONS
def test_routers_that_limit_their_icmp_are_asked_again(path: Chain, version: int) -> None:
    """Eight probes a hop, and Linux answers six at once by default, then one a second."""
    for node in range(1, 5):
        path.limit_icmp(node, 1000)
    try:
        shown = probe(path, version)
    finally:
        for node in range(1, 5):
            path.limit_icmp(node, 0)
    assert shown.rows == [every(*DEFAULT_DSCPS)] * 4


def test_people_get_a_table(path: Chain) -> None:
    done = run(path, path.address(4, 4), "--dscp", "41", "--dev", "right")
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        "hop  address    unmarked  41",
        "  1  10.79.0.2         0  41",
        "  2  10.79.1.2         0  41",
        "  3  10.79.2.2         0  41",
        "far  10.79.3.2         0  41",
        "far: closed port",
        "",
        "marks survive to 10.79.3.2: DSCP 41 arrived as sent",
    ]


def test_a_listener_answers_many_and_ends(path: Chain) -> None:
    address = path.address(4, 6)
    with listening(path, "--port", "4000", "--address", address, "--json") as listener:
        assert json.loads(listener.said["stdout"]) == {"ready": f"UDP {address} port 4000"}
        shown = probe(path, 6, "--port", "4000")
        assert (shown.survives, shown.far) == (True, {"listener"})
        assert probe(path, 4, "--port", "4000", "--dscp", "7").far == {"closed port"}
        taken = subprocess.run(
            [*within(path.nodes[4]), AGENT, "probe", "--listen", "--port", "4000"],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert taken.returncode == 1
        assert "choose another --port" in taken.stderr
        assert listener.stop(signal.SIGINT) == 0
        assert json.loads(listener.await_line("answered", "stdout"))["answered"] >= 8


def test_refusals(path: Chain, tmp_path: Path) -> None:
    far = path.address(4, 4)
    for arguments in ((), (far, "--listen"), (far, "--dscp", "0"), (far, "--port", "x")):
        assert run(path, *arguments).returncode == 2
    for address in ("256.1.1.1", "far.example", "\u00e4" * 80, "fe80::1%nowhere"):
        done = run(path, "--listen", "--address", address)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert "is no address" in done.stderr
    (tmp_path / "scapy.py").write_text("raise ImportError('none here')")
    cases = {
        "pip install 'scapy>=2.6'": run(path, far, PYTHONPATH=str(tmp_path)),
        "CAP_NET_RAW": run(
            path, far, prefix=("setpriv", "--bounding-set=-net_raw", "--inh-caps=-net_raw")
        ),
        "check the name": run(path, "no.such.host.invalid"),
        "check the address": run(path, "203.0.113.9"),
        "name an interface": run(path, far, "--dev", "none0"),
        "name one host": run(path, "224.0.0.1"),
        "choose another --address": run(path, "--listen", "--address", "203.0.113.9"),
    }
    for words, done in cases.items():
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
        assert words in done.stderr
