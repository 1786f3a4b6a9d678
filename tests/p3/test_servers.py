"""Servers beside the workers and on ranks of their own, chosen with `servers=`."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from support.ranks import Ranks

from p3.engine import P3Error
from p3.engines import GROUPS, PS, choose_engine
from p3.servers import check_servers, serve

SECONDS = 30
TOLERANCE = 2e-5


@pytest.mark.parametrize("servers", [[2, 3], [1], [2, 0]])
def test_any_servers_give_what_one_process_gives(served: Ranks, servers: Sequence[int]) -> None:
    first, second = (served.run("equals_single_process", "adam", "auto", servers) for _ in range(2))
    assert all(result["engine"] == "ParameterServer" for result in first)
    assert all(result["distance"] < TOLERANCE for result in first)
    assert len({result["digest"] for result in (*first, *second)}) == 1
    # Whoever serves sends its own sums in place of contributions: with two workers as many.
    assert len({result["sent"] for result in first}) == 1


@pytest.mark.parametrize(
    ("servers", "reason"),
    [
        ((3,), "with 2 workers the servers that do not work are ranks 2, 3 … without a gap"),
        ((0, 0), "name each rank once"),
        ((-1,), "from 0 on"),
    ],
)
def test_servers_that_cannot_be_are_refused(servers: tuple[int, ...], reason: str) -> None:
    with pytest.raises(P3Error, match=reason):
        check_servers(servers, 2)


def test_servers_choose_the_engine() -> None:
    assert choose_engine("auto", 2, (0,)) is PS
    assert choose_engine("auto", 1, (1,)) is PS
    with pytest.raises(P3Error, match="'groups' has no servers"):
        choose_engine(GROUPS, 2, (0,))


def test_a_server_says_what_it_needs_to_know(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(P3Error, match="start it under torchrun, or give rank="):
        serve()
    with pytest.raises(P3Error, match="MASTER_ADDR"):
        serve(4)
