"""Trees as values: what each builder promises, and what it refuses."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p3_shaper.bands import BandTable, default_table
from p3_shaper.describe import describe_tree
from p3_shaper.limits import (
    MAX_BURST,
    LinkLimits,
    burst_bytes,
    burst_ticks,
    link_queue_bytes,
    queue_bytes,
    ticks_bytes,
)
from p3_shaper.parts import EtsOptions, FifoOptions, HtbOptions, PrioOptions
from p3_shaper.rates import Rate, parse_rate
from p3_shaper.tcmessage import TC_ROOT, handle_text
from p3_shaper.tree import (
    AGENT_MAJOR,
    MAJORS,
    SHAPE_MAJOR,
    Tree,
    TreeError,
    band_guarantee,
    ets_tree,
    htb_prio_tree,
    htb_tree,
    ingress_tree,
    link_tree,
    prio_tree,
)

LIMITS = LinkLimits()
SIXTEEN = BandTable(tuple(range(5, 21)))
RATE = parse_rate("200mbit")


def test_htb_bands_are_strict_by_prio_and_may_take_the_whole_link() -> None:
    tree = htb_tree(default_table(), RATE, LIMITS)
    inner, *bands, unmarked = tree.classes
    assert [item.priority for item in bands] == list(range(7))
    assert [handle_text(item) for item in tree.bands] == [f"7033:1{band}" for band in range(7)]
    assert tree.bands == tuple(item.classid for item in bands)
    assert {item.parent for item in (*bands, unmarked)} == {inner.classid}
    assert {item.ceil for item in tree.classes} == {RATE}
    assert inner.rate == RATE
    assert unmarked.classid == tree.unmarked
    assert unmarked.priority == 7
    assert unmarked.rate == RATE.share(0.1)
    assert tree.root is not None
    assert tree.root.options == HtbOptions(default=tree.unmarked & 0xFFFF)


def test_every_htb_leaf_holds_four_megabytes_and_quanta_hold_a_gso_packet() -> None:
    limits = LinkLimits(gso_max_size=200_000)
    tree = htb_tree(default_table(), RATE, limits)
    leaves = [qdisc for qdisc in tree.qdiscs if qdisc.parent != TC_ROOT]
    assert {qdisc.parent for qdisc in leaves} == {*tree.bands, tree.unmarked}
    assert {qdisc.kind for qdisc in leaves} == {"bfifo"}
    assert all(isinstance(qdisc.options, FifoOptions) for qdisc in leaves)
    assert queue_bytes(RATE) >= 4_000_000
    assert all(item.quantum >= 200_000 for item in tree.classes[1:])


def test_a_low_band_leaves_95_percent_and_lives() -> None:
    """A starved TCP connection dies, so its band is guaranteed something; not too much."""
    for text in ("20mbit", "200mbit", "1gbit", "10gbit", "100gbit"):
        rate = parse_rate(text)
        floor = band_guarantee(rate)
        assert floor.bits_per_second >= 500_000
        assert floor.bits_per_second <= 0.05 * rate.bits_per_second
    assert band_guarantee(parse_rate("10gbit")) == parse_rate("50mbit")


@settings(deadline=None)
@given(st.integers(1, 7), st.integers(10_000_000, 400_000_000_000), st.floats(0.01, 0.3))
def test_htb_guarantees_never_pass_the_rate(bands: int, bits: int, share: float) -> None:
    table = BandTable(default_table(bands).dscps, unmarked_share=share)
    tree = htb_tree(table, Rate(bits), LIMITS)
    inner, *rest = tree.classes
    assert sum(item.rate.bits_per_second for item in rest) <= inner.rate.bits_per_second


def test_guarantees_past_the_rate_are_refused() -> None:
    with pytest.raises(TreeError, match=r"add up to 3.6mbit .* past the link's 1mbit: raise"):
        htb_tree(default_table(), parse_rate("1mbit"), LIMITS)
    with pytest.raises(TreeError, match="smaller guarantee"):
        htb_tree(default_table(), RATE, LIMITS, guarantee=parse_rate("30mbit"))


def test_more_bands_than_a_kind_has_are_refused_with_the_way_out() -> None:
    with pytest.raises(TreeError, match=r"at most 7 bands.*htb\+prio"):
        htb_tree(SIXTEEN, RATE, LIMITS)
    with pytest.raises(TreeError, match=r"at most 15 bands.*htb\+prio"):
        prio_tree(SIXTEEN)
    with pytest.raises(TreeError, match=r"ets has 16, one.*at most 15 bands"):
        ets_tree(SIXTEEN)
    assert len(htb_prio_tree(SIXTEEN, RATE, LIMITS).bands) == 16


def test_prio_bands_are_the_qdisc_s_and_the_last_is_for_unmarked_traffic() -> None:
    tree = prio_tree(default_table())
    assert tree.root is not None
    assert tree.root.options == PrioOptions(bands=8, priomap=(7,) * 16)
    assert [handle_text(item) for item in tree.bands] == [f"7033:{band}" for band in range(1, 8)]
    assert handle_text(tree.unmarked) == "7033:8"
    assert not tree.classes
    assert {qdisc.kind for qdisc in tree.qdiscs} == {"prio", "bfifo"}


def test_ets_is_prio_by_another_qdisc_all_of_it_strict() -> None:
    tree, prio = ets_tree(default_table()), prio_tree(default_table())
    assert tree.root is not None
    assert tree.root.options == EtsOptions(bands=8, strict=8, quanta=(), priomap=(7,) * 16)
    assert [item for item in tree.qdiscs if item != tree.root] == list(prio.qdiscs[1:])
    assert (tree.filters, tree.bands, tree.unmarked) == (prio.filters, prio.bands, prio.unmarked)


def test_htb_prio_guarantees_unmarked_traffic_its_share_beside_the_bands() -> None:
    tree = htb_prio_tree(default_table(), RATE, LIMITS)
    _, marked, unmarked = tree.classes
    assert marked.priority < unmarked.priority
    assert unmarked.rate == RATE.share(0.1)
    prio = next(qdisc for qdisc in tree.qdiscs if qdisc.kind == "prio")
    assert prio.parent == marked.classid
    assert {item.parent for item in tree.filters} == {AGENT_MAJOR << 16, prio.handle}
    to_marked = [item for item in tree.filters if item.parent == AGENT_MAJOR << 16]
    assert {item.classid for item in to_marked} == {marked.classid}
    assert tree.kinds == {"htb", "prio", "bfifo", "u32"}


def test_a_link_is_one_class_and_one_bounded_queue() -> None:
    tree = link_tree(RATE, 256_000, LIMITS)
    (only,) = tree.classes
    assert (only.rate, only.ceil) == (RATE, RATE)
    leaf = tree.qdiscs[1]
    assert (leaf.kind, leaf.parent, leaf.options) == ("bfifo", only.classid, FifoOptions(256_000))
    assert tree.owner == SHAPE_MAJOR
    assert not tree.filters


def test_a_link_s_buffer_must_hold_a_packet() -> None:
    with pytest.raises(TreeError, match="at least 65536B"):
        link_tree(RATE, 64_000, LIMITS)


def test_ingress_redirects_everything() -> None:
    tree = ingress_tree(7)
    assert tree.kinds == {"ingress", "u32", "mirred"}
    assert [item.redirect for item in tree.filters] == [7]


@pytest.mark.parametrize(
    "tree",
    [
        htb_tree(default_table(), RATE, LIMITS),
        prio_tree(default_table()),
        ets_tree(default_table()),
        htb_prio_tree(SIXTEEN, RATE, LIMITS),
        link_tree(RATE, 256_000, LIMITS),
    ],
    ids=["htb", "prio", "ets", "htb+prio", "link"],
)
def test_every_handle_is_recognised_as_its_owner_s_alone(tree: Tree) -> None:
    owned = range(tree.owner, tree.owner + MAJORS)
    other = SHAPE_MAJOR if tree.owner == AGENT_MAJOR else AGENT_MAJOR
    majors = {qdisc.major for qdisc in tree.qdiscs}
    assert tree.owner
    assert majors <= set(owned)
    assert other not in majors
    assert len({qdisc.handle for qdisc in tree.qdiscs}) == len(tree.qdiscs)


def test_filters_come_in_pairs_and_a_priority_serves_one_protocol() -> None:
    tree = htb_tree(default_table(), RATE, LIMITS)
    assert len(tree.filters) == 2 * (1 + 7)
    assert len({item.priority for item in tree.filters}) == len(tree.filters)
    for classid in tree.bands:
        protocols = [item.protocol for item in tree.filters if item.classid == classid]
        assert protocols.count(0x0800) == protocols.count(0x86DD)


def test_the_order_of_parts_is_no_part_of_a_tree() -> None:
    tree = htb_tree(default_table(), RATE, LIMITS)
    turned = Tree(tree.qdiscs[::-1], tree.classes[::-1], tree.filters[::-1])
    assert turned == tree


@settings(deadline=None)
@given(st.integers(8, 10**13), st.integers(1_500, 524_280))
def test_a_burst_holds_two_packets_and_stays_well_under_a_megabyte(bits: int, gso: int) -> None:
    rate, limits = Rate(bits), LinkLimits(gso_max_size=gso)
    size = burst_bytes(rate, limits)
    assert size <= MAX_BURST < 1_000_000
    assert size >= min(2 * gso, MAX_BURST)
    assert size >= min(rate.bytes_per_second * 150 // 1_000_000, MAX_BURST)


@settings(deadline=None)
@given(st.integers(8_000_000, 10**13), st.integers(1, MAX_BURST))
def test_a_burst_in_ticks_is_not_less_than_in_bytes(bits: int, size: int) -> None:
    rate = Rate(bits)
    ticks = burst_ticks(rate, size)
    assert 0 < ticks < 2**32
    assert ticks_bytes(rate, ticks) >= size - 1
    assert ticks_bytes(rate, ticks) <= size + rate.bytes_per_second * 64 // 10**9 + 1


def test_a_link_s_default_queue_is_50_milliseconds_within_bounds() -> None:
    assert link_queue_bytes(parse_rate("1gbit")) == 6_250_000
    assert link_queue_bytes(parse_rate("1mbit")) == 256 << 10
    assert link_queue_bytes(parse_rate("100gbit")) == 32 << 20


def test_a_tree_is_described_in_tc_s_words() -> None:
    lines = list(describe_tree(link_tree(RATE, 256_000, LIMITS)))
    assert lines == [
        "qdisc htb 7053: root default 0x10",
        "qdisc bfifo 7063: parent 7053:10 limit 256000b",
        "class 7053:10 parent 7053: htb rate 200mbit ceil 200mbit burst 131072b cburst 131072b "
        "prio 0 quantum 65536",
    ]
    assert len(list(describe_tree(htb_prio_tree(SIXTEEN, RATE, LIMITS)))) == 19 + 3 + 68
