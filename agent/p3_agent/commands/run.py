"""`p3-agent run`: apply the bands, keep them, put back what was there at the end."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TypeAlias

from p3_agent import logs
from p3_agent.commands.options import Commands, add_confirm, add_json, add_settings, settings
from p3_agent.commands.plan import facts
from p3_agent.config import Settings
from p3_agent.confirmation import Confirmation
from p3_agent.control import listening
from p3_agent.daemon import Daemon
from p3_agent.guard import guard
from p3_agent.keeper import Keeper
from p3_agent.orders import Orders, by_signals
from p3_agent.report import line_text
from p3_agent.scrape import scraped
from p3_agent.site import Site, require_net_admin, survey
from p3_agent.state import StateStore
from p3_shaper.netlink import Netlink, open_netlink

Steps: TypeAlias = tuple[str, ...]


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    command = commands.add_parser(
        "run", help="apply the bands, keep them, and put back what was there at the end"
    )
    add_settings(command)
    add_confirm(command)
    add_json(command, "the line that says it is ready as a JSON object")
    command.add_argument(
        "--metrics", metavar="ADDR", help="serve Prometheus at unix:PATH or HOST:PORT"
    )
    command.add_argument("--verbose", action="store_true", help="log every check, too")
    command.set_defaults(command=_main)


def _main(parsed: Namespace) -> int:
    logs.start(verbose=parsed.verbose)
    words = _as_json if parsed.json else _as_text
    asyncio.run(run(partial(settings, parsed), parsed.confirm, words))
    return 0


def _as_text(site: Site, socket: Path) -> str:
    return f"ready {site.describe()}, listening at {socket}"


def _as_json(site: Site, socket: Path) -> str:
    return line_text({**facts(site), "socket": str(socket)})


async def run(
    read: Callable[[], Settings],
    confirm_s: float | None = None,
    words: Callable[[Site, Path], str] = _as_text,
) -> None:
    """Apply the tree, keep it until a signal, and put back what was there.

    Prints one line, the `words`, when the tree is in place and the socket is served.
    Raises one of SENTENCES; when that is before that line, nothing was changed. With `confirm_s` it
    ends so many seconds later with NotConfirmedError, unless it is confirmed.
    """

    orders = by_signals(read)  # before anything else: a stop is then never a plain kill
    chosen = read()
    require_net_admin()
    confirmation = Confirmation(confirm_s)
    async with open_netlink() as netlink:
        with ExitStack() as stack:
            if confirm_s is not None:
                confirmation.then(stack.enter_context(guard(chosen)).release)
            await keep(
                netlink,
                StateStore(chosen.state_dir),
                chosen,
                confirmation,
                orders,
                ready=lambda site, _: print(words(site, chosen.socket), flush=True),
            )
    confirmation.check()


async def keep(
    netlink: Netlink,
    store: StateStore,
    settings: Settings,
    confirmation: Confirmation,
    orders: Orders,
    *,
    ready: Callable[[Site, Steps], None],
    stays: Callable[[], bool] = lambda: False,
) -> None:
    """One agent's life on its interface, from the first look until it is ordered to stop.

    `ready` is called when the tree is in place, with the steps that it took, and the socket served.
    What was there is put back at the end unless the tree `stays`.
    """
    site = await survey(netlink, settings)
    keeper = Keeper(netlink, store, site, takeover=settings.takeover)
    daemon = Daemon(settings, keeper, confirmation, orders)
    with (
        keeper.holding(),
        listening(settings.socket) as listener,
        scraped(settings.metrics, daemon.status) as scrapes,
    ):
        async with netlink.watch(site.link.index, site.link.name) as watch:
            steps = await keeper.begin()
            try:
                await daemon.serve(
                    listener,
                    watch,
                    ready=partial(ready, site, steps),
                    beside=scrapes,
                )
            finally:
                if not stays():
                    await keeper.end()
