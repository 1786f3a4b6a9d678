"""A rank that is lost ends training on every other one, with one error that names it."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from support.clusters import MakeCluster
from support.nursery import PIPE_LINES, Forked, Nursery, nursery
from support.ranks import SUPPORT
from support.restarted import LAST

from p3_shaper.cluster import HOST_QUEUE
from p3_shaper.cluster_nodes import DEVICE, batch
from p3_shaper.netlink import open_netlink
from p3_shaper.rates import parse_rate
from p3_shaper.tree import link_tree

TIMEOUT = 3
"""Of P3, where silence tells: long enough for a busy machine's ranks to show that they run."""
TOLERANCE = 2e-5

# What ranks do, how many of them work, and who is lost. In a ring of four one rank is not the lost
# one's neighbour.
CASES: list[tuple[list[object], int, int]] = [
    (["groups", TIMEOUT], 4, 0),
    (["groups", TIMEOUT], 4, 3),
    (["ps", TIMEOUT], 4, 0),
    (["ps", TIMEOUT, [], "server"], 4, 2),
    (["ps", TIMEOUT, [2, 3]], 2, 1),
    (["ps", TIMEOUT, [2, 3], "server"], 2, 2),
]


@pytest.fixture(scope="module")
def mother() -> Iterator[Nursery]:
    with nursery() as one:
        yield one


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_rank_is_named_on_every_other(mother: Nursery, number: signal.Signals) -> None:
    with ExitStack() as exits:
        families: list[list[Forked]] = []
        for what, workers, victim in CASES:
            ranks = exits.enter_context(mother.family("training", *what))
            families.append(ranks)
            for rank in ranks[:workers]:
                rank.hears("trained")
            ranks[victim].send(number)
        for ranks, (what, _, victim) in zip(families, CASES, strict=True):
            for rank in (rank for place, rank in enumerate(ranks) if place != victim):
                error, left = rank.last_words()
                assert error.startswith("PeerLostError"), (what, victim, error)
                assert re.search(rf"\brank {victim} at 127", error), (what, victim, error)
                assert left == "left:", (what, victim, left)


def go_on(ranks: list[Forked]) -> None:
    """All train, in step."""
    for _ in range(2 * PIPE_LINES):
        for rank in ranks:
            rank.hears("trained")


def test_a_rank_that_stands_still_for_a_while_is_awaited(mother: Nursery) -> None:
    with ExitStack() as exits:
        families: list[list[Forked]] = []
        for engine in ("groups", "ps"):
            ranks = exits.enter_context(mother.family("training", engine, TIMEOUT, size=3))
            families.append(ranks)
            for rank in ranks:
                rank.hears("trained")
            ranks[1].send(signal.SIGSTOP)
        # Nothing can be awaited here: that nothing happens for so long is the point.
        time.sleep(TIMEOUT / 2)
        for ranks in families:
            ranks[1].send(signal.SIGCONT)
            go_on(ranks)


def test_an_interrupt_ends_every_rank_without_a_word(mother: Nursery) -> None:
    with ExitStack() as exits:
        families = [
            exits.enter_context(mother.family("training", engine, size=3))
            for engine in ("groups", "ps")
        ]
        for rank in itertools.chain(*families):
            rank.hears("trained")
        for rank in itertools.chain(*families):
            rank.send(signal.SIGINT)
        for rank in itertools.chain(*families):
            assert rank.last_words() == []


def test_a_network_that_comes_back_is_survived_and_one_that_does_not_is_told(
    mother: Nursery, make_cluster: MakeCluster
) -> None:
    cluster = make_cluster(3, parse_rate("100mbit"))
    family = partial(
        mother.family,
        "training",
        size=3,
        environment={"MASTER_ADDR": cluster.nodes[0].address, "GLOO_SOCKET_IFNAME": DEVICE},
        namespaces=[node.name for node in cluster.nodes],
    )
    with ExitStack() as exits:
        families = []
        for engine in ("groups", "ps"):
            ranks = exits.enter_context(family(engine, TIMEOUT))
            families.append(ranks)
            go_on(ranks)
        port = f"link set {cluster.nodes[1].port}"
        batch("ip", [f"{port} down"], cluster.switch)
        time.sleep(TIMEOUT / 2)  # as long as the cut is
        batch("ip", [f"{port} up"], cluster.switch)
        for ranks in families:
            go_on(ranks)
        shape(cluster.nodes[1].name, "1mbit")
        time.sleep(TIMEOUT / 2)
        shape(cluster.nodes[1].name, "100mbit")
        for ranks in families:
            go_on(ranks)
        batch("ip", [f"{port} down"], cluster.switch)
        for ranks in families:
            for number, rank in enumerate(ranks):
                error, left = rank.last_words()
                lost = "rank 1 hears no other rank" if number == 1 else "rank 1 at 10.77.0.2"
                assert error.startswith(f"PeerLostError: {lost}"), error
                assert left == "left:"


def shape(namespace: str, rate: str) -> None:
    """Another rate for a node's own queue."""

    async def change() -> None:
        async with open_netlink(namespace) as netlink:
            link = await netlink.link(DEVICE)
            tree = link_tree(parse_rate(rate), HOST_QUEUE, link.limits)
            await netlink.ensure(link.index, tree)

    asyncio.run(change())


def test_slices_travel_on_the_interface_that_was_chosen_without_ipv4_too(
    mother: Nursery, make_cluster: MakeCluster
) -> None:
    cluster = make_cluster(2)
    for node in cluster.nodes:
        extra = f"extra{node.index}"
        lines = [
            f"link add {extra} type veth peer name eth1 netns {node.name}",
            f"link set {extra} addrgenmode none master bridge0 up",
        ]
        batch("ip", lines, cluster.switch)
        lines = [
            f"addr add fd78::{node.index + 1}/64 dev eth1 nodad",
            "link set eth1 up",
            f"addr del {node.address}/24 dev {DEVICE}",
        ]
        batch("ip", lines, node.name)
    with ExitStack() as exits:
        for engine in ("groups", "ps"):
            ranks = exits.enter_context(
                mother.family(
                    "training",
                    engine,
                    TIMEOUT,
                    [],
                    "worker",
                    "eth1",
                    size=2,
                    environment={
                        "MASTER_ADDR": cluster.nodes[0].address6,
                        "GLOO_SOCKET_IFNAME": DEVICE,
                    },
                    namespaces=[node.name for node in cluster.nodes],
                )
            )
            go_on(ranks)
            ranks[1].send(signal.SIGKILL)
            error, left = ranks[0].last_words()
            assert error.startswith("PeerLostError: rank 1 at [fd78::2]:"), error
            assert left == "left:"


def test_torchrun_s_restart_goes_on_from_the_checkpoint(tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts=1"]
    subprocess.run(
        [*torchrun, "--nproc-per-node=3", str(SUPPORT / "restarted.py"), str(tmp_path)],
        env={
            **os.environ,
            "PYTHONPATH": str(SUPPORT.parent),
            "OMP_NUM_THREADS": "1",
            "P3_AGENT_SOCKET": "/nonexistent/p3-agent.sock",
            # Else gloo may find the addresses of the ranks before.
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        },
        timeout=120,
        check=True,
    )
    assert (tmp_path / "began").read_text().split() == ["0", str(LAST + 1)]
    assert float((tmp_path / "distance").read_text()) < TOLERANCE
