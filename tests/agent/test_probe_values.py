"""The probe's pure parts: on any path the verdict holds, and its span contains the culprit."""

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.inet import ICMP, IP, TCP, UDP, IPerror, TCPerror, UDPerror
from scapy.layers.inet6 import ICMPv6DestUnreach, ICMPv6TimeExceeded, IPerror6, IPv6
from scapy.packet import Raw

from p3_agent.probe import echo, report
from p3_agent.probe.quotes import Quote, reader
from p3_agent.probe.search import SILENT, TRIES, Search
from p3_agent.probe.values import Answer, Findings, Kind, Probe
from p3_agent.probe.verdict import Outcome, Verdict, judge

DSCPS = (41, 39, 7)
FAR = "192.0.2.99"


@dataclass(frozen=True)
class Path:
    """A path with `routers` routers, one of which may rewrite one mark.

    `allowance` is how many errors each sends a round.
    """

    routers: int
    silent: frozenset[int] = frozenset()
    far: Kind | None = Kind.CLOSED
    culprit: int = 0
    on_arrival: bool = True
    becomes: int = 0
    marks: frozenset[int] = frozenset(DSCPS)
    drops: int = 0
    allowance: int = 6

    def answers(self, probes: tuple[Probe, ...]) -> list[Answer]:
        sent: Counter[int] = Counter()
        found = []
        for probe in probes:
            answer = self._answer(probe)
            hop = min(probe.hops, self.routers + 1)
            if answer is not None and sent[hop] < self.allowance:
                sent[hop] += 1
                found.append(answer)
        return found

    def _answer(self, probe: Probe) -> Answer | None:
        hop = min(probe.hops, self.routers + 1)
        if hop in self.silent or (self.drops and probe.dscp and hop > self.drops):
            return None
        tos = self.seen(hop, probe.dscp) << 2
        if hop <= self.routers:
            return Answer(probe, Kind.PASSED, f"192.0.2.{hop}", tos)
        return None if self.far is None else Answer(probe, self.far, FAR, tos)

    def seen(self, hop: int, dscp: int) -> int:
        """What the mark is when it has come to a hop; the far end is one more than the routers."""
        if not self.culprit or dscp not in self.marks:
            return dscp
        rewritten = hop >= self.culprit if self.on_arrival else hop > self.culprit
        return self.becomes if rewritten else dscp


def look(path: Path) -> tuple[Findings, Verdict]:
    """A whole look at a path, which ends."""
    search = Search(DSCPS, 30)
    for _ in range(100):
        due = search.due()
        if not due:
            findings = search.findings(FAR)
            return findings, judge(findings)
        search.take(path.answers(due))
    raise AssertionError("the search does not end")


@st.composite
def paths(draw: st.DrawFn) -> Path:
    routers = draw(st.integers(0, 6))
    return Path(
        routers,
        draw(st.frozensets(st.integers(1, max(routers, 1)), max_size=routers)),
        draw(st.sampled_from([Kind.CLOSED, Kind.ECHOED, None])),
        draw(st.integers(0, routers)),
        draw(st.booleans()),
        draw(st.sampled_from([0, 1, 20])),
        draw(st.frozensets(st.sampled_from(DSCPS))),
        allowance=draw(st.integers(1, 6)),
    )


@given(paths())
def test_the_verdict_is_true_on_any_path(path: Path) -> None:
    findings, verdict = look(path)
    for fate in verdict.fates:
        rewritten = path.seen(path.routers + 1, fate.dscp) != fate.dscp
        shown = [hop for hop in findings.hops if fate.dscp in hop.answers]
        changed = [hop for hop in shown if hop.answers[fate.dscp].dscp != fate.dscp]
        if rewritten and (changed or path.far):
            assert fate.outcome is Outcome.REWRITTEN
            assert fate.seen == path.becomes
            assert fate.span is not None
            before, after = fate.span.before.hop, fate.span.after.hop
            assert before is not None
            end = path.routers + 1 if after is None else after
            low = before + 1 if path.on_arrival else before
            assert low <= path.culprit <= end - (0 if path.on_arrival else 1)
            # As narrow as it can be: nothing between has shown anything.
            assert set(fate.span.silent) == set(range(before + 1, end))
            assert set(fate.span.silent) <= path.silent
        elif path.far:
            assert fate.outcome is Outcome.SURVIVES
        else:
            assert fate.outcome is Outcome.UNKNOWN
            assert fate.seen == fate.dscp
    everything = {fate.outcome for fate in verdict.fates}
    assert (verdict.survives is True) == (everything == {Outcome.SURVIVES})
    assert (verdict.survives is False) == (Outcome.REWRITTEN in everything)


@given(paths())
def test_every_hop_that_answers_is_asked_until_all_is_known(path: Path) -> None:
    findings, _ = look(path)
    wanted = {0, *DSCPS}
    for hop in findings.hops:
        known = set() if hop.number in path.silent else wanted
        assert set(hop.answers) == known
    assert set(findings.far.answers) == (wanted if path.far else set())
    if path.far:
        assert len(findings.hops) == path.routers


def test_a_hop_that_is_silent_costs_no_more_than_its_tries() -> None:
    path = Path(3, silent=frozenset({2}))
    search = Search(DSCPS, 30)
    asked: Counter[Probe] = Counter()
    while due := search.due():
        asked.update(due)
        search.take(path.answers(due))
    assert sum(count for probe, count in asked.items() if probe.hops == 2) == TRIES
    assert max(count for probe, count in asked.items() if probe.hops != 2) == 1


def test_a_path_that_goes_silent_is_left() -> None:
    findings, verdict = look(Path(30, silent=frozenset(range(3, 31)), far=None))
    assert [hop.number for hop in findings.hops] == [1, 2]
    assert verdict.survives is None
    assert "came as sent to hop 2 (192.0.2.2), and then nothing answered" in verdict.sentence
    search = Search(DSCPS, 30)
    while due := search.due():
        assert max(probe.hops for probe in due if probe.hops != 64) <= SILENT
        search.take(())


def test_what_is_dropped_for_its_mark_is_told_from_silence() -> None:
    _, verdict = look(Path(3, drops=2))
    assert verdict.survives is False
    assert {fate.outcome for fate in verdict.fates} == {Outcome.LOST}
    assert "hop 2 (192.0.2.2)" in verdict.sentence


def test_a_refusal_is_named() -> None:
    search = Search(DSCPS, 30)
    while due := search.due():
        search.take(
            Answer(probe, Kind.PASSED, "192.0.2.1", probe.dscp << 2)
            if probe.hops == 1
            else Answer(probe, Kind.REFUSED, "192.0.2.1", probe.dscp << 2, "host-prohibited")
            for probe in due
        )
    findings = search.findings(FAR)
    verdict = judge(findings)
    assert [hop.number for hop in findings.hops] == [1]
    assert verdict.survives is None
    assert "192.0.2.1 refused it (host-prohibited)" in verdict.sentence


def test_a_sentence() -> None:
    path = Path(3, frozenset({2}), culprit=2, becomes=1, marks=frozenset({41}))
    findings, verdict = look(path)
    assert verdict.sentence == (
        "marks do not survive to 192.0.2.99: DSCP 41 turned into 1 between hop 1 (192.0.2.1) and "
        "hop 3 (192.0.2.3): hop 1 sending, hop 2 (no answer), hop 3 receiving, or what lies "
        "between unseen; DSCP 39, 7 arrived as sent"
    )
    assert report.as_text(findings, verdict).splitlines()[:5] == [
        "hop  address     unmarked  41  39  7",
        "  1  192.0.2.1          0  41  39  7",
        "  2  no answer          -   -   -  -",
        "  3  192.0.2.3          0   1  39  7",
        "far  192.0.2.99         0   1  39  7",
    ]


def test_ecn_bits_and_a_path_that_is_not_one_are_remarked_on() -> None:
    search = Search(DSCPS, 30)
    while due := search.due():
        search.take(
            Answer(probe, Kind.CLOSED, FAR, probe.dscp << 2)
            if probe.hops > 1
            else Answer(probe, Kind.PASSED, f"192.0.2.{1 + probe.dscp % 2}", probe.dscp << 2 | 3)
            for probe in due
        )
    findings = search.findings(FAR)
    text = report.as_text(findings, judge(findings))
    assert "hop 1: several routers answer" in text
    assert "hop 1: ECN bits arrive as 11" in text
    assert judge(findings).survives is True


UDP_QUOTE = UDPerror(sport=1000, dport=33434, len=99)


@pytest.mark.parametrize(
    ("kind", "code"), [(11, 0), (3, 3), (3, 13)], ids=["passed", "closed", "refused"]
)
def test_a_quote_of_the_least_size(kind: int, code: int) -> None:
    """RFC 792: the IP header and 8 bytes."""
    inner = bytes(IP(dst=FAR, tos=0xA5, proto=17, len=99, chksum=1)) + bytes(UDP_QUOTE)[:8]
    message = bytes(IP(dst="192.0.2.2") / ICMP(type=kind, code=code) / Raw(inner))
    expected = {11: Kind.PASSED, 3: Kind.CLOSED if code == 3 else Kind.REFUSED}[kind]
    quote = reader(4)(message)
    assert quote is not None
    assert quote == Quote(expected, quote.reason, 0xA5, FAR, 1000, 33434, 99)
    if expected is Kind.REFUSED:
        assert quote.reason == "communication-prohibited"


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (ICMPv6TimeExceeded(code=0), Kind.PASSED),
        (ICMPv6DestUnreach(code=4), Kind.CLOSED),
        (ICMPv6DestUnreach(code=0), Kind.REFUSED),
    ],
)
def test_a_quote_of_ipv6(layer: ICMPv6TimeExceeded | ICMPv6DestUnreach, expected: Kind) -> None:
    message = bytes(layer / IPerror6(dst="2001:db8::1", tc=0xA5, nh=17) / UDP_QUOTE)
    quote = reader(6)(message)
    assert quote is not None
    assert quote == Quote(expected, quote.reason, 0xA5, "2001:db8::1", 1000, 33434, 99)


def test_other_icmp_is_not_ours() -> None:
    read = reader(4)
    assert read(bytes(IP() / ICMP(type=8))) is None
    assert read(bytes(IP() / ICMP(type=11) / IPerror() / TCPerror())) is None
    assert read(bytes(IP() / ICMP(type=11, code=1) / IPerror() / UDP_QUOTE)) is None
    assert read(bytes(IP() / TCP())) is None
    assert reader(6)(bytes(IPv6() / UDP())) is None


@given(st.sampled_from([4, 6]), st.binary(max_size=120), st.booleans())
def test_no_bytes_break_the_reader(version: int, data: bytes, plausible: bool) -> None:
    if plausible:
        head = bytes(IP(proto=1)) + b"\x0b\0" if version == 4 else b"\x03\0"
        data = head + data
    found = reader(4 if version == 4 else 6)(data)
    assert found is None or isinstance(found, Quote)


@given(st.binary(max_size=echo.MAX_REQUEST + 10), st.integers(0, 255))
def test_the_listener_answers_requests_alone_and_never_with_more(data: bytes, tos: int) -> None:
    assert echo.answer(data, tos) is None
    assert echo.read_reply(data, bytes(8)) is None


@given(st.binary(min_size=8, max_size=8), st.integers(0, 1100), st.integers(0, 255))
def test_a_request_and_its_reply(token: bytes, number: int, tos: int) -> None:
    request = echo.request(token, number)
    assert echo.number_of(8 + len(request)) == number
    reply = echo.answer(request, tos)
    assert reply is not None
    assert len(reply) <= len(request)
    assert echo.read_reply(reply, token) == (number, tos)
    assert echo.read_reply(reply, bytes(byte ^ 1 for byte in token)) is None
    assert echo.answer(reply, tos) is None


@given(st.lists(st.floats(0, 1), max_size=200))
def test_the_allowance_holds(pauses: list[float]) -> None:
    allowance, now, taken = echo.Allowance(rate=5, left=5, last=0), 0.0, 0
    for pause in pauses:
        now += pause
        taken += allowance.take(now)
        assert taken <= 5 + 5 * now + 1e-6
