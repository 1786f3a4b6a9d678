"""An agent at work: answers the control socket, hears the kernel, and mends what drifts."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import version

from p3_agent.config import Settings, rate_of
from p3_agent.confirmation import Confirmation
from p3_agent.control import ControlServer
from p3_agent.errors import SENTENCES
from p3_agent.jobs import Jobs
from p3_agent.keeper import Keeper
from p3_agent.messages import PROTOCOL, Bands, Done, Status, Welcome
from p3_agent.peers import group_id
from p3_agent.shared import Shared
from p3_agent.site import at_rate
from p3_shaper.netlink import Watch
from p3_shaper.watch import OVERRUN

log = logging.getLogger(__name__)

SETTLE_S = 0.1
"""Another program's change is often several messages; its last one should be seen, too."""
RETRY_S = 1.0


class Daemon:
    """Serves one keeper until told to stop."""

    def __init__(self, settings: Settings, keeper: Keeper, confirmation: Confirmation) -> None:
        self._settings = settings
        self._keeper = keeper
        self._confirmation = confirmation
        self._wake = asyncio.Event()
        self._shared_status = Shared(self._look)
        self.jobs = Jobs()
        self.group = group_id(settings.group)

    async def serve(
        self, listener: socket.socket, watch: Watch, stop: asyncio.Event, ready: Callable[[], None]
    ) -> None:
        """Work until `stop` is set; `ready` is called when everything runs.

        Raises the first error that ends the work early.
        """
        server = ControlServer(listener, self)
        try:
            async with asyncio.TaskGroup() as group:
                work = (
                    server.serve(),
                    self._hear(watch),
                    self._mend(watch),
                    self._confirmation.wait(stop),
                )
                tasks = [group.create_task(item) for item in work]
                ready()
                await stop.wait()
                async with self._keeper.quiet():  # no change is cut off in its middle
                    for task in tasks:
                        task.cancel()
        except BaseExceptionGroup as errors:
            raise _first(errors) from errors

    async def _hear(self, watch: Watch) -> None:
        async for change in watch:
            level = logging.WARNING if change.what == OVERRUN else logging.DEBUG
            log.log(level, "%s: %s", self._settings.device, change.text)
            self._wake.set()

    async def _mend(self, watch: Watch) -> None:
        patience = self._settings.reconcile_s
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    await self._wake.wait()
                    await asyncio.sleep(SETTLE_S)
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

    def welcome(self) -> Welcome:
        """Who this is."""
        return Welcome(PROTOCOL, version("p3-transport"), os.getpid(), self._settings.device)

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
            version=version("p3-transport"),
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
        site = at_rate(self._keeper.site, self._settings, rate_of(rate))
        steps = await self._keeper.change(site)
        self._settings = replace(self._settings, rate=site.choice.rate)  # kept if it comes back
        return Done(steps)


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    error = errors.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error


def stop_on_signals() -> asyncio.Event:
    """An event that SIGTERM, SIGINT and SIGHUP set; none of them interrupts a change."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, stop.set)
    return stop
