"""Which address a rank tells the others; whole jobs on chosen interfaces are in test_failures."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from agent.running import place

from p3.agreement import check_same
from p3.engine import P3Error, PlanMismatchError
from p3.hosts import choose_host
from p3_shaper.namespace import enter


def test_an_interface_has_the_host_s_address() -> None:
    assert choose_host(lambda mine: [mine, ("127.0.0.1",)], "lo") == "127.0.0.1"


def test_the_default_is_the_interface_that_the_agent_shapes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def chosen(namespace: str, interface: str | None = None) -> str:
        enter(namespace)
        return choose_host(lambda mine: [mine], interface)

    with place() as here, ThreadPoolExecutor(1) as pool:
        here.ip(
            "link add eth1 type veth peer name peer1",
            "addr add 10.79.0.1/24 dev eth1",
            "link set eth1 up",
            "link set peer1 up",
        )
        monkeypatch.setenv("P3_AGENT_SOCKET", str(here.socket))
        monkeypatch.setenv("MASTER_ADDR", "10.79.0.2")
        monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
        assert pool.submit(chosen, here.name).result() == "10.79.0.1"  # the way to the master
        with here.running("--rate", "200mbit") as agent:
            assert pool.submit(chosen, here.name).result() == "10.78.0.1"
            assert pool.submit(chosen, here.name, "eth1").result() == "10.79.0.1"
            assert agent.stop() == 0


def test_what_no_rank_can_use_is_told_by_all() -> None:
    with pytest.raises(P3Error, match=r"rank 0: there is no interface 'p3no': choose one of .*lo"):
        choose_host(lambda mine: [mine], "p3no")
    with pytest.raises(P3Error, match="rank 1: finds no route"):
        choose_host(lambda mine: [mine, "finds no route"], "lo")
    with pytest.raises(P3Error, match="neither IPv4 nor IPv6 in common"):
        choose_host(lambda _: [("10.1.2.3",), ("fd00::1",)], "lo")


def test_ranks_of_other_releases_are_named() -> None:
    here = {"release": ["1"], "model": ["weight", "bias"]}
    check_same(lambda mine: [mine, here], here)
    with pytest.raises(PlanMismatchError, match=r"ranks \[1\] .* release .*: 2 on rank 1, 1 on"):
        check_same(lambda mine: [mine, {**here, "release": ["2"]}], here)
    with pytest.raises(PlanMismatchError, match="nothing more on rank 2, bias on rank 0"):
        check_same(lambda mine: [mine, here, {**here, "model": ["weight"]}], here)
    with pytest.raises(PlanMismatchError, match="rank 1 says bytes where"):
        check_same(lambda mine: [mine, b"digest"], here)
