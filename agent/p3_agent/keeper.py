"""The tree of one interface over an agent's life: made, mended when it drifts, taken away again."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager

from p3_agent.budget import Budget
from p3_agent.config import Settings
from p3_agent.errors import AgentError
from p3_agent.lock import hold
from p3_agent.messages import ClassStatus, Drift
from p3_agent.original import Original, is_others, is_ours
from p3_agent.site import Site, survey
from p3_agent.state import StateStore
from p3_shaper.describe import describe_tree
from p3_shaper.netlink import Netlink, TcError
from p3_shaper.operations import Operation
from p3_shaper.plan import plan
from p3_shaper.tcmessage import Counters, handle_text, total

log = logging.getLogger(__name__)

OK = "ok"
_MAX_LINES, _MAX_LINE = 200, 200  # of a tree in a reply, which is bounded
_MAX_LOGGED = 4
_REPAIRS, _REPAIR_S = 10, 30.0


class LinkGoneError(AgentError):
    """The interface was removed while the agent kept it."""


class Keeper:
    """Keeps `site.wanted` on its interface; one change at a time, whoever asks for it.

    `state` is OK, or a sentence on what is wrong.
    """

    def __init__(self, netlink: Netlink, store: StateStore, site: Site, *, takeover: bool) -> None:
        self._netlink = netlink
        self._store = store
        self._original = Original(netlink, site.link, store)
        self._takeover = takeover
        self._held = ExitStack()
        self._turn = asyncio.Lock()
        self._budget = Budget(_REPAIRS, _REPAIR_S)
        self._is_suspect = self._is_lost = False
        self.site = site
        self.state = OK
        self.retry_s: float | None = None
        self.checks = 0
        self.drift = Drift(0, ())

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Be the only agent on the interface meanwhile; AgentError if there is another."""
        self._held.enter_context(hold(self.site.link, self._store.directory))
        try:
            yield
        finally:
            self._held.close()

    async def begin(self) -> tuple[str, ...]:
        """Save the original and apply the tree; the steps taken. Nothing is changed if it raises.

        Raises AgentError, TcError, PlanError or ReplayError.
        """
        return await self._begin(self.site, self._original)

    async def _begin(self, site: Site, original: Original) -> tuple[str, ...]:
        observed = await self._netlink.observe(site.link.index)
        saved_now = await original.keep(observed, takeover=self._takeover)
        try:
            return await self._apply(site)
        except Exception:
            # An original that is older than this start belongs to the tree that is there again.
            if saved_now:
                await original.put_back(takeover=self._takeover)
            raise

    async def mend(self, settings: Settings, *, asked: bool = False) -> tuple[str, ...]:
        """Compare with the wanted tree and repair; the steps taken, usually none.

        `state` says why when nothing is repaired: another's qdisc is at the root and there is no
        takeover; the interface is gone (when it is back, it gets what `settings` say); or others
        undo every repair, and nobody `asked` for one more. `retry_s` is then when to try again.
        Raises one of SENTENCES.
        """
        async with self._turn:
            self.checks += 1
            self.retry_s = None
            if await self._is_removed():
                return await self._come_back(settings)
            observed = await self._netlink.observe(self.site.link.index)
            root = observed.root
            if root is not None and is_others(observed) and not self._takeover:
                self._set_state(
                    f"another program put a {root.kind} qdisc {handle_text(root.handle)} at the "
                    "root, and the bands have no effect: remove it, or restart with --takeover"
                )
                return ()
            wait_s = 0.0 if asked else self._budget.wait_s(_now())
            if wait_s and plan(self.site.wanted, observed, takeover=self._takeover):
                self.retry_s = wait_s
                self._set_state(
                    "another program keeps undoing the bands, and the next repair has to wait: "
                    "find it (`tc monitor` shows its changes) and stop it"
                )
                return ()
            steps = await self._apply(self.site)
            if steps:
                self._budget.spend(_now())
                self.drift = Drift(self.drift.repairs + 1, steps[:_MAX_LINES])
                log.warning("%s: repaired: %s", self.site.link.name, _short(steps))
            self._set_state(OK)
            log.debug("%s: checked", self.site.link.name)
            return steps

    async def change(self, site: Site) -> tuple[str, ...]:
        """Keep another tree from now on; the steps taken. The old one stays if it raises."""
        async with self._turn:
            if await self._is_removed():
                raise LinkGoneError(self._gone())
            steps = await self._apply(site)
            self.site = site
            log.info("now %s", site.describe())
            return steps

    async def adopt(self, settings: Settings) -> tuple[str, ...]:
        """Keep what other settings want from now on; as `change`."""
        site = await survey(self._netlink, settings)
        if site.link.index != self.site.link.index:
            raise AgentError(f"{site.link.name} is another interface by now: restart the agent")
        return await self.change(site)

    async def end(self) -> None:
        """Put back what was there before; another's qdisc stays without a takeover."""
        async with self._turn:
            name = self.site.link.name
            if await self._is_removed():
                self._original.forget()
                return
            observed = await self._netlink.observe(self.site.link.index)
            if is_others(observed) and not self._takeover:
                log.warning("%s: left as it is, since another program has the root", name)
                self._original.forget()
                return
            steps = await self._original.put_back(takeover=self._takeover)
            log.info("%s: put back what was there: %s", name, _short(steps))

    @asynccontextmanager
    async def quiet(self) -> AsyncIterator[None]:
        """While this is held, no change is under way and none begins."""
        async with self._turn:
            yield

    def suspect(self) -> None:
        """The kernel said that the interface was removed; one of its number may be there by now."""
        self._is_suspect = True

    def fail(self, error: Exception) -> None:
        """Note that a repair did not work."""
        self._set_state(f"cannot be repaired for now: {error}")

    async def tree(self) -> tuple[str, ...]:
        """What is on the interface, a line a part, as tc says it; cut where it is too long."""
        async with self._turn:
            observed = await self._netlink.observe(self.site.link.index)
        lines = [line[:_MAX_LINE] for line in describe_tree(observed)]
        more = len(lines) - _MAX_LINES
        return (*lines[:_MAX_LINES], *([f"and {more} more"] if more > 0 else []))

    async def classes(self) -> tuple[ClassStatus, ...]:
        """Every band's counters, most urgent first, and the unmarked traffic's."""
        async with self._turn:
            counters = await self._netlink.statistics(self.site.link.index)
        wanted = self.site.wanted
        guarantees = {
            item.classid: item.rate.bits_per_second * wanted.queues for item in wanted.classes
        }
        rows = [
            *(
                (classid, band.index, band.dscp)
                for classid, band in zip(wanted.bands, self.site.table.bands, strict=True)
            ),
            (wanted.unmarked, None, None),
        ]
        return tuple(
            _class_status(row, total(counters, wanted.copies(row[0])), guarantees.get(row[0]))
            for row in rows
        )

    async def _apply(self, site: Site) -> tuple[str, ...]:
        operations: list[Operation] = await self._netlink.ensure(
            site.link.index, site.wanted, takeover=self._takeover
        )
        return tuple(operation.describe() for operation in operations)

    async def _is_removed(self) -> bool:
        """Whether the interface was removed, and nothing is kept since.

        Another of its number is another interface; unless a repair, asked for before the kernel's
        word was heard, has made the bands there: then it is kept.
        """
        if self._is_gone():
            self._is_lost = True
        elif self._is_suspect:
            self._is_lost = not is_ours(await self._netlink.observe(self.site.link.index))
        self._is_suspect = False
        return self._is_lost

    def _is_gone(self) -> bool:
        try:
            socket.if_indextoname(self.site.link.index)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return True
        return False

    def _gone(self) -> str:
        link = self.site.link
        return (
            f"the interface {link.name} (number {link.index}) was removed: "
            "the bands return when it does"
        )

    async def _come_back(self, settings: Settings) -> tuple[str, ...]:
        """Begin anew where an interface of the name is again; no steps while there is none."""
        self._original.forget()
        self._held.close()  # what is there by now may have the same number
        try:
            site = await survey(self._netlink, settings)
        except TcError as error:
            if error.errno != errno.ENODEV:
                raise
            self._set_state(self._gone())
            return ()
        with ExitStack() as held:
            held.enter_context(hold(site.link, self._store.directory))
            original = Original(self._netlink, site.link, self._store)
            steps = await self._begin(site, original)
            self._held = held.pop_all()
        self.site, self._original, self._is_lost = site, original, False
        log.info("%s is back: %s", site.link.name, site.describe())
        self._set_state(OK)
        return steps

    def _set_state(self, state: str) -> None:
        if state != self.state:
            level = logging.INFO if state == OK else logging.WARNING
            log.log(level, "%s: %s", self.site.link.name, state)
        self.state = state


def _now() -> float:
    return asyncio.get_running_loop().time()


def _short(steps: Sequence[str]) -> str:
    more = len(steps) - _MAX_LOGGED
    text = "; ".join(steps[:_MAX_LOGGED]) or "nothing to do"
    return f"{text}; and {more} steps more" if more > 0 else text


def _class_status(
    row: tuple[int, int | None, int | None], counters: Counters, guarantee: int | None
) -> ClassStatus:
    classid, band, dscp = row
    return ClassStatus(
        band=band,
        dscp=dscp,
        classid=handle_text(classid),
        guarantee=guarantee,
        bytes=counters.bytes,
        packets=counters.packets,
        drops=counters.drops,
        backlog_bytes=counters.backlog,
        backlog_packets=counters.qlen,
        overlimits=counters.overlimits,
    )
