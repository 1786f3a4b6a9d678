"""What every test has: a check that it leaves nothing behind, and nodes to run things in."""

from __future__ import annotations

import compileall
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from support import leaks, second_kernel
from support.clusters import MakeCluster

from p3_shaper.cluster import PORT_BUFFER, Cluster, Pair
from p3_shaper.rates import Rate, parse_rate

NATIVE_THREADS = "native_threads"
ROOT = Path(__file__).parents[1]
SOURCES = ("agent", "shaper", "integrations", "scripts", "tests/support")
"""What processes that tests start import."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{NATIVE_THREADS}: the test starts thread pools of a native library (torch's), which stay",
    )
    second_kernel.register(config)
    leaks.adopt_orphans()
    for name in SOURCES:
        # They are hundreds, and some may not write what they compile, or are told not to.
        compileall.compile_dir(ROOT / name, quiet=2)
    # Ends the run, as Ctrl-C does; by itself a cluster would make it end but the test at hand.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # A shell's background job and nohup ignore these, and so would the processes that tests signal.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def _leaves_nothing(request: pytest.FixtureRequest) -> Iterator[None]:
    checked = request.node.get_closest_marker(NATIVE_THREADS) is None
    before = leaks.observe(native_threads=checked)
    yield
    leaked = leaks.leaked_since(before, native_threads=checked)
    leaks.remove(leaked)
    if leaked:
        lines = sorted(f"{resource.kind} {words}" for resource, words in leaked.items())
        pytest.fail("\n".join(["the test left behind:", *lines]), pytrace=False)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Four nodes at 200 Mbit/s with shallow switch ports."""
    with Cluster(4, parse_rate("200mbit")) as made:
        yield made


@pytest.fixture
def make_cluster() -> Iterator[MakeCluster]:
    """Makes clusters of any size, rate and port buffer, unshaped unless a rate is given."""
    with ExitStack() as exits:

        def make(
            nodes: int = 2, rate: Rate | None = None, port_buffer: int = PORT_BUFFER
        ) -> Cluster:
            return exits.enter_context(Cluster(nodes, rate, port_buffer))

        yield make


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Two nodes joined by one veth pair, unshaped."""
    with Pair() as made:
        yield made
