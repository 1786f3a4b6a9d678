"""An agent at work: answers the control socket, hears the kernel, and mends what drifts."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import replace

from p3_agent.config import Settings, check_reload, rate_of
from p3_agent.confirmation import Confirmation
from p3_agent.control import ControlServer
from p3_agent.errors import SENTENCES
from p3_agent.jobs import Jobs
from p3_agent.keeper import Keeper
from p3_agent.messages import PROTOCOL, Bands, Done, Status, Welcome
from p3_agent.orders import Orders
from p3_agent.peers import group_id
from p3_agent.shared import Shared
from p3_agent.site import at_rate
from p3_agent.version import installed
from p3_shaper.netlink import Watch
from p3_shaper.watch import LINK, OVERRUN

log = logging.getLogger(__name__)

SETTLE_S = 0.1
"""Another program's change is often several messages; its last one should be seen, too."""
RETRY_S = 1.0
SIGNS = 3
"""Signs of life in the time after which the service manager takes the agent for dead."""

Work = Callable[[], Coroutine[None, None, None]]


class Daemon:
    """Serves one keeper until told to stop."""

    def __init__(
        self, settings: Settings, keeper: Keeper, confirmation: Confirmation, orders: Orders
    ) -> None:
        self._settings = settings
        self._keeper = keeper
        self._confirmation = confirmation
        self._orders = orders
        self._notifier = orders.notifier
        self._changing = asyncio.Lock()
        self._wake = asyncio.Event()
        self._shared_status = Shared(self._look)
        self.jobs = Jobs()
        self.group = group_id(settings.group)

    async def serve(
        self,
        listener: socket.socket,
        watch: Watch,
        ready: Callable[[], None],
        beside: Iterable[Work] = (),
    ) -> None:
        """Work, and do what is `beside`, until ordered to stop; `ready` is called when all runs.

        Raises the first error that ends the work early.
        """
        server, stop = ControlServer(listener, self), self._orders.stop
        try:
            async with asyncio.TaskGroup() as group:
                work = (
                    server.serve(),
                    self._hear(watch),
                    self._mend(watch),
                    self._reload(),
                    self._confirmation.wait(stop),
                    *(item() for item in beside),
                )
                tasks = [group.create_task(item) for item in work]
                ready()
                self._notifier.ready(self._line())
                await stop.wait()
                self._notifier.stopping()
                async with self._keeper.quiet():  # no change is cut off in its middle
                    for task in tasks:
                        task.cancel()
        except BaseExceptionGroup as errors:
            raise _first(errors) from errors

    async def _hear(self, watch: Watch) -> None:
        async for change in watch:
            level = logging.WARNING if change.what == OVERRUN else logging.DEBUG
            log.log(level, "%s: %s", self._settings.device, change.text)
            if change.what == LINK and change.removed:
                self._keeper.suspect()
            self._wake.set()

    async def _mend(self, watch: Watch) -> None:
        patience = self._settings.reconcile_s
        while True:
            await self._until_due(patience)
            self._wake.clear()
            patience = self._settings.reconcile_s
            try:
                await self._keeper.mend(self._settings)
                patience = min(patience, self._keeper.retry_s or patience)
            except SENTENCES as error:
                self._keeper.fail(error)
                patience = min(patience, RETRY_S)
            if watch.follow(self._keeper.site.link.index):
                self._wake.set()  # nobody told what happened to it until now
            self._notifier.status(self._line())

    async def _until_due(self, patience: float) -> None:
        """Wait until a change is heard or `patience` is over; meanwhile the agent is alive.

        A repair that hangs gives no sign of life, however well the rest answers.
        """
        loop = asyncio.get_running_loop()
        due = loop.time() + patience
        pause = (self._notifier.watchdog_s or patience * SIGNS) / SIGNS
        while (left := due - loop.time()) > 0:
            self._notifier.alive()
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left, pause)):
                    await self._wake.wait()
                await asyncio.sleep(SETTLE_S)
                return

    async def _reload(self) -> None:
        while True:
            await self._orders.reload.wait()
            self._orders.reload.clear()
            self._notifier.reloading()
            try:
                await self._adopt(self._orders.read())
                log.info("reloaded: %s", self._line(), extra={"event": "reload"})
            except SENTENCES as error:
                log.error(
                    "not reloaded, and the old settings stay: %s",
                    error,
                    extra={"event": "reload-refused"},
                )
            self._notifier.ready(self._line())

    async def _adopt(self, fresh: Settings) -> None:
        async with self._changing:
            check_reload(self._settings, fresh)
            await self._keeper.adopt(fresh)
            self._settings = fresh
            self.group = group_id(fresh.group)
            self._wake.set()  # the next check is due by the new settings

    def _line(self) -> str:
        keeper = self._keeper
        return f"{keeper.site.describe()}: {keeper.state}"

    def welcome(self) -> Welcome:
        """Who this is."""
        return Welcome(PROTOCOL, installed(), os.getpid(), self._settings.device)

    def bands(self) -> Bands:
        """The table that the tree was made from."""
        table = self._settings.table
        return Bands(table.dscps, table.unmarked_share, table.force)

    async def status(self) -> Status:
        """The tree and its counters as they are now; read once for all who ask meanwhile."""
        return await self._shared_status()

    async def _look(self) -> Status:
        keeper, choice = self._keeper, self._keeper.site.choice
        classes, tree = await keeper.classes(), await keeper.tree()
        return Status(
            version=installed(),
            pid=os.getpid(),
            device=self._settings.device,
            index=keeper.site.link.index,
            mode=choice.mode,
            reason=choice.reason,
            rate=None if choice.rate is None else choice.rate.bits_per_second,
            state=keeper.state,
            classes=classes,
            tree=tree,
            drift=keeper.drift,
            reconciliations=keeper.checks,
            unconfirmed_s=self._confirmation.left_s,
            jobs=self.jobs.all(),
        )

    async def reconcile(self) -> Done:
        """Mend now."""
        return Done(await self._keeper.mend(self._settings, asked=True))

    def confirm(self) -> Done:
        """Keep what was started with --confirm."""
        return Done((self._confirmation.confirm(),))

    async def set_rate(self, rate: str) -> Done:
        """Change the rate in place; the tree stays as it is if that cannot be."""
        async with self._changing:
            site = at_rate(self._keeper.site, self._settings, rate_of(rate))
            steps = await self._keeper.change(site)
            self._settings = replace(self._settings, rate=site.choice.rate)  # kept if it comes back
            return Done(steps)


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    error = errors.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
