"""Plans on values: nothing to do when equal, the wanted tree when not, and all the way back."""

from __future__ import annotations

from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p3_shaper.bands import BandTable, default_table
from p3_shaper.encode_u32 import decode_filter, filter_key
from p3_shaper.limits import LinkLimits
from p3_shaper.observe import tree_of
from p3_shaper.operations import Operation, messages_of
from p3_shaper.parts import FifoOptions, Filter, HtbClass, HtbOptions, Match, Qdisc
from p3_shaper.plan import ForeignRootError, PlanError, clear, plan, put_back
from p3_shaper.rates import Rate, parse_rate
from p3_shaper.snapshot import Snapshot, SnapshotError
from p3_shaper.tcmessage import TC_ROOT, Object, Request, TcMessage, Verb
from p3_shaper.tree import (
    AGENT_MAJOR,
    SHAPE_MAJOR,
    Tree,
    ets_tree,
    htb_prio_tree,
    htb_tree,
    ingress_tree,
    link_tree,
    prio_tree,
)

LIMITS = LinkLimits()
RATE = parse_rate("200mbit")
NO_DEADLINE = settings(deadline=None, max_examples=60)


class Kernel:
    """One hook of an interface as the kernel keeps it, as far as plans rely on it."""

    def __init__(self, tree: Tree) -> None:
        self.messages: list[TcMessage] = []
        for message in messages_of(tree):
            self._make(message)

    def tree(self) -> Tree:
        """What an observer sees; filters have handles, as the kernel numbers them."""
        numbered = [
            replace(item, handle=0x8000_0000 | (item.handle & 0xFFF or number))
            if item.object is Object.FILTER
            else item
            for number, item in enumerate(self.messages, 0x800)
        ]
        return tree_of(numbered)

    async def send(self, request: Request) -> None:
        message = request.message
        match request.verb:
            case Verb.ADD:
                self._make(message)
            case Verb.CHANGE:
                self._change(message)
            case Verb.REPLACE:
                assert message.parent == TC_ROOT, "only a root is replaced"
                self.messages = []
                self._make(message)
            case Verb.DELETE:
                self._delete(message)

    def _make(self, message: TcMessage) -> None:
        if message.object is Object.QDISC:
            assert not [item for item in self._qdiscs() if item.parent == message.parent], message
            assert message.handle not in [item.handle for item in self._qdiscs()]
            assert self.messages or message.parent >> 16 == 0xFFFF, "the first is the root"
        else:
            assert [item for item in self._qdiscs() if item.handle >> 16 == message.parent >> 16]
        if message.object is Object.CLASS:
            assert message.handle not in [item.handle for item in self._classes()]
        if message.object is Object.FILTER:
            keys = [filter_key(item) for item in self._filters() if item.parent == message.parent]
            _, priority, protocol = filter_key(message)
            assert all(key[1] != priority or key[2] == protocol for key in keys), message
        self.messages.append(message)

    def _change(self, message: TcMessage) -> None:
        (there,) = [item for item in self.messages if self._same_place(item, message)]
        assert (there.kind, there.parent) == (message.kind, message.parent)
        self.messages[self.messages.index(there)] = message

    def _delete(self, message: TcMessage) -> None:
        if message.object is Object.FILTER:
            gone = [item for item in self._filters() if filter_key(item) == filter_key(message)]
        else:
            gone = [item for item in self.messages if self._same_place(item, message)]
        assert gone, f"there is nothing to delete: {message}"
        if message.object is Object.CLASS:
            assert not [item for item in self._classes() if item.parent == message.handle]
            targets = [decode_filter(item) for item in self._filters()]
            assert message.handle not in [item.classid for item in targets if item], "in use"
        for item in gone:
            self._forget(item)

    def _forget(self, gone: TcMessage) -> None:
        self.messages.remove(gone)
        for item in list(self.messages):
            below_class = gone.object is Object.CLASS and item.parent == gone.handle
            below_qdisc = gone.object is Object.QDISC and item.parent >> 16 == gone.handle >> 16
            if (below_class or below_qdisc) and item in self.messages:
                self._forget(item)

    @staticmethod
    def _same_place(left: TcMessage, right: TcMessage) -> bool:
        return left.object is right.object and left.handle == right.handle

    def _qdiscs(self) -> list[TcMessage]:
        return [item for item in self.messages if item.object is Object.QDISC]

    def _classes(self) -> list[TcMessage]:
        return [item for item in self.messages if item.object is Object.CLASS]

    def _filters(self) -> list[TcMessage]:
        return [item for item in self.messages if item.object is Object.FILTER]


def apply(kernel: Kernel, operations: list[Operation]) -> None:
    for operation in operations:
        run(operation.apply(kernel))


def undo(kernel: Kernel, operations: list[Operation]) -> None:
    for operation in reversed(operations):
        run(operation.undo(kernel))


def run(step: Coroutine[None, None, None]) -> None:
    """The model answers at once, so that no event loop is needed."""
    with suppress(StopIteration):
        step.send(None)


@st.composite
def tables(draw: st.DrawFn, most: int) -> BandTable:
    dscps = draw(st.lists(st.integers(5, 23), unique=True, min_size=1, max_size=most))
    share = draw(st.floats(0.05, 0.2))
    return BandTable(tuple(dscps), unmarked_share=share)


RATES = st.integers(20_000_000, 10**11).map(Rate)
LINK_LIMITS = st.builds(LinkLimits, st.integers(1500, 400_000))
HTB = st.builds(htb_tree, tables(most=7), RATES, LINK_LIMITS)
PRIO = st.builds(prio_tree, tables(most=15))
HTB_PRIO = st.builds(htb_prio_tree, tables(most=16), RATES, LINK_LIMITS)
ETS = st.builds(ets_tree, tables(most=15))
AGENT_TREES = st.one_of(HTB, PRIO, ETS, HTB_PRIO)
LINKS = st.builds(link_tree, RATES, st.integers(400_000, 10**7), LINK_LIMITS)
FOREIGN = st.sampled_from(
    [
        Tree(),
        Tree(
            qdiscs=(
                Qdisc("htb", 0x10000, TC_ROOT, HtbOptions(default=0x30)),
                Qdisc("pfifo", 0x8001_0000, 0x10010, FifoOptions(100)),
            ),
            classes=(HtbClass(0x10010, 0x10000, RATE, RATE, 1000, 1000, 0, 1500),),
            filters=(
                Filter(0x10000, 10, 0x0800, (Match(0, 0xFF0000, 0xB80000),), 0x10010),
                Filter(0x10000, 10, 0x0800, (Match(0, 0xFF0000, 0x280000),), 0x10010),
            ),
        ),
        Tree(qdiscs=(Qdisc("pfifo", 0x8002_0000, TC_ROOT, FifoOptions(100)),)),
    ]
)


@st.composite
def drifted(draw: st.DrawFn, trees: st.SearchStrategy[Tree]) -> Tree:
    """A tree of ours that others have touched: parts gone, changed, added."""
    tree = draw(trees)
    root, leaves = tree.qdiscs[0], tree.qdiscs[1:]
    prio = {item.handle >> 16 for item in leaves if item.kind == "prio"}
    droppable = [item for item in leaves if item.kind == "bfifo"]
    kept = [item for item in droppable if draw(st.booleans())]
    others = [
        Qdisc("pfifo", (0x9000 + number) << 16, item.parent, FifoOptions(100))
        if draw(st.booleans())
        else replace(item, options=FifoOptions(draw(st.integers(1, 10**6))))
        for number, item in enumerate(kept)
    ]
    classes = tuple(
        replace(item, burst=item.burst + draw(st.integers(0, 2))) for item in tree.classes
    )
    filters = [item for item in tree.filters if draw(st.booleans())]
    if draw(st.booleans()):
        extra = Match(0, 0xFFFF_FFFF, 0)
        filters.append(Filter(root.handle, draw(st.integers(1, 0x3F)), 3, (extra,)))
        taken = [item for item in filters[:-1] if item.priority == filters[-1].priority]
        filters = [item for item in filters if item not in taken]
    bands = [item for item in leaves if item.major in prio]
    return Tree((root, *bands, *others), classes, tuple(filters))


@NO_DEADLINE
@given(st.one_of(AGENT_TREES, LINKS, st.builds(ingress_tree, st.integers(1, 100))))
def test_nothing_is_to_be_done_where_the_wanted_tree_is(tree: Tree) -> None:
    assert plan(tree, tree) == []
    assert plan(tree, Kernel(tree).tree()) == []
    assert Kernel(tree).tree() == tree


@NO_DEADLINE
@given(AGENT_TREES, st.one_of(AGENT_TREES, drifted(AGENT_TREES), FOREIGN))
def test_a_plan_makes_the_wanted_tree_and_its_undo_the_one_before(wanted: Tree, old: Tree) -> None:
    kernel = Kernel(old)
    before = kernel.tree()
    operations = plan(wanted, before, takeover=True)
    apply(kernel, operations)
    assert kernel.tree() == wanted
    assert plan(wanted, kernel.tree()) == []
    undo(kernel, operations)
    assert kernel.tree() == before


@NO_DEADLINE
@given(HTB, HTB, st.data())
def test_a_plan_stopped_half_way_can_be_taken_back(
    old: Tree, wanted: Tree, data: st.DataObject
) -> None:
    kernel = Kernel(old)
    operations = plan(wanted, kernel.tree())
    done = operations[: data.draw(st.integers(0, len(operations)))]
    apply(kernel, done)
    undo(kernel, done)
    assert kernel.tree() == old


@NO_DEADLINE
@given(AGENT_TREES, FOREIGN)
def test_what_was_there_can_be_put_back(ours: Tree, foreign: Tree) -> None:
    kernel = Kernel(foreign)
    before = kernel.tree()
    apply(kernel, plan(ours, before, takeover=True))
    apply(kernel, put_back(before.messages, kernel.tree(), AGENT_MAJOR))
    assert kernel.tree() == before
    assert put_back(before.messages, kernel.tree(), AGENT_MAJOR) == []


@NO_DEADLINE
@given(HTB, FOREIGN, st.data())
def test_a_restore_stopped_half_way_can_be_taken_back(
    ours: Tree, foreign: Tree, data: st.DataObject
) -> None:
    kernel = Kernel(ours)
    operations = put_back(Kernel(foreign).tree().messages, kernel.tree(), AGENT_MAJOR)
    done = operations[: data.draw(st.integers(0, len(operations)))]
    apply(kernel, done)
    undo(kernel, done)
    assert kernel.tree() == ours


@NO_DEADLINE
@given(st.one_of(AGENT_TREES, FOREIGN))
def test_a_snapshot_reads_back_from_its_bytes(tree: Tree) -> None:
    snapshot = Snapshot(3, "eth0", "02:00:00:00:00:01", Kernel(tree).tree().messages)
    assert Snapshot.from_bytes(snapshot.to_bytes()) == snapshot


@NO_DEADLINE
@given(st.one_of(st.binary(max_size=100), st.recursive(st.integers(), st.lists).map(repr)))
def test_what_is_no_snapshot_is_refused(data: bytes | str) -> None:
    with pytest.raises(SnapshotError, match="not a snapshot"):
        Snapshot.from_bytes(data if isinstance(data, bytes) else data.encode())


def test_a_snapshot_of_another_version_is_refused() -> None:
    data = Snapshot(3, "eth0", "", version=2).to_bytes()
    with pytest.raises(SnapshotError, match="version 2, and only 1 is known here"):
        Snapshot.from_bytes(data)


@pytest.mark.parametrize(("rate", "changes"), [("200mbit", 0), ("300mbit", 9)])
def test_another_rate_is_a_change_of_classes_and_of_nothing_else(rate: str, changes: int) -> None:
    """A class change loses no packet; a new root or leaf loses what waits in it."""
    old = htb_tree(default_table(), RATE, LIMITS)
    wanted = htb_tree(default_table(), parse_rate(rate), LIMITS)
    operations = plan(wanted, old)
    assert [item.request.verb for item in operations] == [Verb.CHANGE] * changes
    assert {item.request.message.object for item in operations} <= {Object.CLASS}


def test_another_buffer_is_a_change_in_place() -> None:
    old, wanted = link_tree(RATE, 256_000, LIMITS), link_tree(RATE, 512_000, LIMITS)
    (operation,) = plan(wanted, old)
    assert operation.describe() == "change qdisc bfifo 7063: parent 7053:10 limit 512000b"


@NO_DEADLINE
@given(AGENT_TREES, st.one_of(LINKS, FOREIGN.filter(lambda tree: bool(tree.qdiscs))))
def test_a_root_that_is_not_ours_is_left_alone_unless_asked(wanted: Tree, foreign: Tree) -> None:
    with pytest.raises(ForeignRootError, match="that is not ours: allow a takeover"):
        plan(wanted, foreign)
    assert clear(foreign, AGENT_MAJOR) == []
    with pytest.raises(PlanError, match="left alone"):
        put_back((), foreign, AGENT_MAJOR)


def test_what_could_not_be_put_back_is_not_taken_over() -> None:
    said = TcMessage(Object.FILTER, 1, 0x10000, "bpf", b"", 1, unsayable="it is a program")
    root = Qdisc("htb", 0x10000, TC_ROOT, HtbOptions(default=0))
    observed = Tree((root,), other=(said,), messages=(said,))
    wanted = htb_tree(default_table(), RATE, LIMITS)
    with pytest.raises(PlanError, match="filter bpf here could not be put back: it is a program"):
        plan(wanted, observed, takeover=True)


def test_what_others_added_below_our_root_stays() -> None:
    """A class of a number beyond ours, and a filter of a priority that tc gave it."""
    tree = htb_tree(default_table(), RATE, LIMITS)
    root, inner = AGENT_MAJOR << 16, tree.classes[0].classid
    strange = HtbClass(root | 0x99, inner, RATE, RATE, 1, 1, 0, 1500)
    theirs = Filter(root, 49152, 0x0800, (Match(0, 0, 0),), root | 0x99)
    observed = replace(tree, classes=(*tree.classes, strange), filters=(*tree.filters, theirs))
    assert plan(tree, observed) == []
    fewer = htb_tree(default_table(3), RATE, LIMITS)
    kernel = Kernel(observed)
    apply(kernel, plan(fewer, observed))
    assert strange in kernel.tree().classes
    assert theirs in kernel.tree().filters
    assert len(kernel.tree().classes) == len(fewer.classes) + 1


@NO_DEADLINE
@given(st.one_of(AGENT_TREES, LINKS))
def test_clearing_removes_what_is_ours_and_can_be_undone(tree: Tree) -> None:
    kernel = Kernel(tree)
    operations = clear(kernel.tree(), tree.owner)
    apply(kernel, operations)
    assert kernel.tree() == Tree()
    undo(kernel, operations)
    assert kernel.tree() == tree
    assert clear(Tree(), tree.owner) == []


def test_clearing_an_ingress_hook_leaves_the_filters_of_others() -> None:
    ours = ingress_tree(7)
    theirs = Filter(0xFFFF_0000, 10, 0x0800, (Match(0, 0, 0),), redirect=8)
    shared = replace(ours, filters=(*ours.filters, theirs))
    kernel = Kernel(shared)
    apply(kernel, clear(kernel.tree(), SHAPE_MAJOR))
    assert kernel.tree() == Tree(ours.qdiscs, filters=(theirs,))
    kernel = Kernel(ours)
    apply(kernel, clear(kernel.tree(), SHAPE_MAJOR))
    assert kernel.tree() == Tree()


def test_an_ingress_hook_of_others_is_left_alone() -> None:
    theirs = Tree(ingress_tree(7).qdiscs)
    with pytest.raises(ForeignRootError):
        plan(ingress_tree(7), theirs)
    assert clear(theirs, SHAPE_MAJOR) == []


def test_a_tree_without_a_root_is_no_plan() -> None:
    with pytest.raises(PlanError, match="no root"):
        plan(Tree(), htb_tree(default_table(), RATE, LIMITS))


def test_operations_say_what_they_do_in_tc_s_words() -> None:
    lines = [item.describe() for item in plan(htb_tree(default_table(1), RATE, LIMITS), Tree())]
    assert lines[0] == "add qdisc htb 7033: root default 0x1f"
    assert lines[2].startswith("add class 7033:10 parent 7033:1 htb rate 1mbit ceil 200mbit burst")
    assert lines[-1] == (
        "add filter parent 7033: protocol all pref 17 u32 match 6a400000/ffc00000 at 0 "
        "flowid 7033:10"
    )
