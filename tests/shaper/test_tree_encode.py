"""Values to the kernel's bytes and back, and what the filters' bits match in real headers."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.packet import Packet, Raw

from p3_shaper.bands import default_table
from p3_shaper.encode import decode_class, decode_qdisc, encode_class, encode_qdisc
from p3_shaper.encode_u32 import decode_filter, encode_filter
from p3_shaper.limits import LinkLimits
from p3_shaper.parts import (
    ETH_P_ALL,
    EtsOptions,
    FifoOptions,
    Filter,
    HtbClass,
    HtbOptions,
    Match,
    OtherOptions,
    PrioOptions,
    Qdisc,
)
from p3_shaper.rates import Rate, parse_rate
from p3_shaper.tcmessage import TC_ROOT, Object, TcMessage, attribute, attributes, handle_text
from p3_shaper.tree import htb_tree

U32 = st.integers(0, 2**32 - 1)
HANDLES = st.integers(1, 0xFFFE).map(lambda major: major << 16)
IDS = st.integers(0x10001, 0xFFFE_FFFF)
RATES = st.integers(1, 10**12).map(Rate.from_bytes_per_second)
OPTIONS = st.one_of(
    st.tuples(st.just("htb"), st.builds(HtbOptions, U32, st.integers(1, 1000))),
    st.tuples(st.sampled_from(["pfifo", "bfifo"]), st.builds(FifoOptions, U32)),
    st.tuples(
        st.just("prio"),
        st.builds(
            PrioOptions, st.integers(2, 16), st.tuples(*[st.integers(0, 15)] * 16).map(tuple)
        ),
    ),
    st.tuples(
        st.just("ets"),
        st.builds(
            EtsOptions,
            st.integers(1, 16),
            st.integers(0, 16),
            st.lists(U32, max_size=16).map(tuple),
            st.lists(st.integers(0, 15), max_size=16).map(tuple),
        ),
    ),
    st.tuples(st.just("fq"), st.builds(OtherOptions, st.binary(min_size=4, max_size=40))),
    st.tuples(st.sampled_from(["ingress", "mq"]), st.none()),
)
QDISCS = st.builds(
    lambda handle, parent, named: Qdisc(named[0], handle, parent, named[1]),
    HANDLES,
    st.one_of(IDS, st.just(TC_ROOT)),
    OPTIONS,
)
CLASSES = st.builds(
    HtbClass, IDS, IDS, RATES, RATES, U32, U32, st.integers(0, 7), st.integers(1, 2**31)
)
MATCHES = st.builds(Match, st.integers(0, 1000).map(lambda word: 4 * word), U32, U32)
FILTERS = st.builds(
    Filter,
    HANDLES,
    st.integers(1, 0xFFFF),
    st.sampled_from([0x0003, 0x0800, 0x86DD]),
    st.lists(MATCHES, max_size=5).map(tuple),
    st.one_of(st.just(0), IDS),
    st.one_of(st.just(0), st.integers(1, 2**31 - 1)),
)


@settings(deadline=None)
@given(QDISCS)
def test_qdiscs_read_back_as_they_were_said(qdisc: Qdisc) -> None:
    assert decode_qdisc(encode_qdisc(qdisc)) == qdisc


@settings(deadline=None)
@given(CLASSES)
def test_classes_read_back_as_they_were_said(item: HtbClass) -> None:
    assert decode_class(encode_class(item)) == item


@settings(deadline=None)
@given(FILTERS)
def test_filters_read_back_as_they_were_said(item: Filter) -> None:
    assert decode_filter(encode_filter(item)) == item


def test_rates_above_34_gigabits_use_the_64_bit_attributes() -> None:
    """The old field holds bytes a second in 32 bits; beyond, it must read all ones."""
    rate = parse_rate("100gbit")
    item = HtbClass(0x70330010, 0x70330001, parse_rate("1gbit"), rate, 1, 1, 0, 65_536)
    found = dict(attributes(encode_class(item).options or b""))
    assert struct.unpack("=Q", found[7]) == (rate.bytes_per_second,)
    assert 6 not in found
    assert struct.unpack_from("=I", found[1], 20) == (2**32 - 1,)


def test_a_class_whose_overhead_is_not_modelled_stays_bytes() -> None:
    item = HtbClass(0x70330010, 0x70330001, Rate(8000), Rate(8000), 1, 1, 0, 65_536)
    message = encode_class(item)
    assert message.options is not None
    options = bytearray(message.options)
    struct.pack_into("=H", options, 4 + 2, 24)  # the rate's overhead
    assert decode_class(TcMessage(Object.CLASS, 1, 1, "htb", bytes(options))) is None


def test_other_u32_filters_stay_bytes() -> None:
    message = encode_filter(Filter(0x10000, 1, 0x0800, (Match(0, 0, 0),), 0x10010))
    marked = (message.options or b"") + attribute(10, bytes(12))  # TCA_U32_MARK
    assert decode_filter(TcMessage(Object.FILTER, 1, 1, "u32", marked, 1)) is None
    assert decode_filter(TcMessage(Object.FILTER, 1, 1, "flower", message.options, 1)) is None
    assert decode_filter(TcMessage(Object.FILTER, 1, 1, "u32", message.options, 1, 5)) is None


def _class_of(packet: Packet) -> str:
    """Where the filters of the default htb tree put a packet, as the kernel's u32 would."""
    tree = htb_tree(default_table(), parse_rate("200mbit"), LinkLimits())
    header = bytes(packet) + bytes(64)
    for item in tree.filters:
        words = [int.from_bytes(header[match.offset :][:4], "big") for match in item.matches]
        fits = all(w & m.mask == m.value for w, m in zip(words, item.matches, strict=True))
        if item.protocol == ETH_P_ALL and fits:
            return handle_text(item.classid)
    return "unmarked"


def _ip(version: int, tos: int) -> Packet:
    return IP(tos=tos) if version == 4 else IPv6(tc=tos)


@pytest.mark.parametrize("version", [4, 6])
def test_every_mark_finds_its_band_whatever_the_ecn_bits(version: int) -> None:
    for band in default_table().bands:
        for ecn in range(4):
            packet = _ip(version, band.tos | ecn) / UDP() / Raw(bytes(500))
            assert _class_of(packet) == f"7033:1{band.index}"


@pytest.mark.parametrize("version", [4, 6])
def test_other_marks_are_unmarked_traffic(version: int) -> None:
    others = set(range(64)) - set(default_table().dscps)
    packets = [_ip(version, dscp << 2) / UDP() / Raw(bytes(500)) for dscp in others]
    assert {_class_of(packet) for packet in packets} == {"unmarked"}


SACKS = [("Timestamp", (1, 2)), ("SAck", (1, 2, 3, 4, 5, 6))]


@pytest.mark.parametrize("version", [4, 6])
def test_pure_acknowledgements_take_band_0_and_nothing_else_does(version: int) -> None:
    low = default_table().bands[-1].tos
    for tos in (0, low):
        for flags in ("A", "AE", "AC"):  # ECN-Echo and CWR are no payload
            for options in ([], SACKS):
                assert _class_of(_ip(version, tos) / TCP(flags=flags, options=options)) == "7033:10"
    for flags in ("S", "SA", "FA", "R", "RA", "PA"):
        assert _class_of(_ip(version, low) / TCP(flags=flags)) == "7033:16"
    data = _ip(version, low) / TCP(flags="A") / Raw(bytes(1000))
    assert _class_of(data) == "7033:16"
    assert _class_of(_ip(version, low) / UDP() / Raw(b"\x50\x10" * 20)) == "7033:16"
