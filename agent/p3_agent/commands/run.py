"""`p3-agent run`: apply the bands, keep them, put back what was there at the end."""

from __future__ import annotations

import argparse
import asyncio
from argparse import Namespace
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from p3_agent import logs
from p3_agent.commands.options import Commands, add_settings, settings
from p3_agent.config import Settings
from p3_agent.confirmation import Confirmation, seconds_of
from p3_agent.control import listening
from p3_agent.daemon import Daemon
from p3_agent.guard import guard
from p3_agent.keeper import Keeper
from p3_agent.orders import Orders, by_signals
from p3_agent.scrape import scraped
from p3_agent.site import require_net_admin, survey
from p3_agent.state import StateStore
from p3_shaper.netlink import Netlink, open_netlink


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    command = commands.add_parser(
        "run", help="apply the bands, keep them, and put back what was there at the end"
    )
    add_settings(command)
    command.add_argument(
        "--confirm",
        type=_seconds,
        metavar="TIME",
        help='go back after TIME ("60s", "5min") unless `p3-agent confirm` is run',
    )
    command.add_argument(
        "--metrics", metavar="ADDR", help="serve Prometheus at unix:PATH or HOST:PORT"
    )
    command.add_argument("--verbose", action="store_true", help="log every check, too")
    command.set_defaults(command=_main)


def _seconds(text: str) -> float:
    try:
        return seconds_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _main(parsed: Namespace) -> int:
    logs.start(verbose=parsed.verbose)
    asyncio.run(run(partial(settings, parsed), parsed.confirm))
    return 0


async def run(read: Callable[[], Settings], confirm_s: float | None = None) -> None:
    """Apply the tree, keep it until a signal, and put back what was there.

    Prints one line that starts with `ready` when the tree is in place and the socket is served.
    Raises one of SENTENCES; when that is before `ready`, nothing was changed. With `confirm_s` it
    ends so many seconds after `ready` with NotConfirmedError, unless it is confirmed.
    """
    settings = read()
    require_net_admin()
    orders = by_signals(read)
    confirmation = Confirmation(confirm_s)
    async with open_netlink() as netlink:
        with ExitStack() as stack:
            if confirm_s is not None:
                confirmation.then(stack.enter_context(guard(settings)).release)
            await keep(netlink, StateStore(settings.state_dir), settings, confirmation, orders)
    confirmation.check()


async def keep(
    netlink: Netlink,
    store: StateStore,
    settings: Settings,
    confirmation: Confirmation,
    orders: Orders,
) -> None:
    """One agent's life on its interface, from the first look until it is ordered to stop."""
    site = await survey(netlink, settings)
    keeper = Keeper(netlink, store, site, takeover=settings.takeover)
    daemon = Daemon(settings, keeper, confirmation, orders)
    with (
        keeper.holding(),
        listening(settings.socket) as listener,
        scraped(settings.metrics, daemon.status) as scrapes,
    ):
        async with netlink.watch(site.link.index, site.link.name) as watch:
            await keeper.begin()
            try:
                await daemon.serve(
                    listener,
                    watch,
                    ready=lambda: print(
                        f"ready {site.describe()}, listening at {settings.socket}", flush=True
                    ),
                    beside=scrapes,
                )
            finally:
                await keeper.end()
