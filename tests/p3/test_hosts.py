"""Which address a rank tells the others; whole jobs on chosen interfaces are in test_failures."""

from __future__ import annotations

import pytest

from p3.agreement import check_same
from p3.engine import P3Error, PlanMismatchError
from p3.hosts import choose_host


def test_an_interface_has_the_host_s_address() -> None:
    assert choose_host(lambda mine: [mine, ("127.0.0.1",)], "lo") == "127.0.0.1"


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
