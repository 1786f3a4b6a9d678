"""A slice is summed around a ring or directly: the same sum, the same bits on every rank."""

from __future__ import annotations

import pytest
import torch
from support.ranks import Ranks

from p3.sums import DirectSum, RingSum, choose_sum
from p3.systems import DIRECT_BYTES


def test_both_ways_give_every_rank_the_same_right_sum(ranks: Ranks) -> None:
    results = ranks.run("sums_both_ways")
    for kind in ("RingSum", "DirectSum"):
        assert all(result["errors"][kind] < 1e-6 for result in results)
        assert len({result["digests"][kind] for result in results}) == 1


@pytest.mark.parametrize("ranks_there", [2, 4, 64])
def test_what_goes_directly_fits_a_shallow_port(ranks_there: int) -> None:
    largest = DIRECT_BYTES // 4 // (ranks_there - 1)
    small, large = torch.zeros(largest), torch.zeros(largest + 1)
    assert isinstance(choose_sum(small, ranks_there), DirectSum)
    assert isinstance(choose_sum(large, ranks_there), RingSum)
    assert choose_sum(small, ranks_there).sent_bytes == small.nbytes * (ranks_there - 1)


def test_a_ring_sends_twice_the_share_of_all_other_ranks() -> None:
    assert choose_sum(torch.empty(1_000_000), 4).sent_bytes == 4_000_000 * 3 // 2


def test_a_lone_rank_sends_nothing() -> None:
    assert choose_sum(torch.zeros(10), 1).sent_bytes == 0
