"""`p3-agent run`: apply the bands, keep them, put back what was there at the end."""

from __future__ import annotations

import asyncio
import logging
from argparse import Namespace

from p3_agent.commands.options import Commands, add_settings, settings
from p3_agent.config import Settings
from p3_agent.control import listening
from p3_agent.daemon import Daemon, stop_on_signals
from p3_agent.keeper import Keeper
from p3_agent.original import Original
from p3_agent.site import require_net_admin, survey
from p3_agent.state import StateStore
from p3_shaper.netlink import open_netlink


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    command = commands.add_parser(
        "run", help="apply the bands, keep them, and put back what was there at the end"
    )
    add_settings(command)
    command.add_argument("--verbose", action="store_true", help="log every check, too")
    command.set_defaults(command=_main)


def _main(parsed: Namespace) -> int:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    if parsed.verbose:
        logging.getLogger("p3_agent").setLevel(logging.DEBUG)
    asyncio.run(run(settings(parsed)))
    return 0


async def run(settings: Settings) -> None:
    """Apply the tree, keep it until a signal, and put back what was there.

    Prints one line that starts with `ready` when the tree is in place and the socket is served.
    Raises one of SENTENCES; when that is before `ready`, nothing was changed.
    """
    require_net_admin()
    stop = stop_on_signals()
    store = StateStore(settings.state_dir)
    async with open_netlink() as netlink:
        site = await survey(netlink, settings)
        original = Original(netlink, site.link, store)
        with store.lock(original.identity), listening(settings.socket) as listener:
            async with netlink.watch(site.link.index) as watch:
                keeper = Keeper(netlink, site, original, takeover=settings.takeover)
                await keeper.begin()
                try:
                    await Daemon(settings, keeper).serve(
                        listener,
                        watch,
                        stop,
                        ready=lambda: print(
                            f"ready {site.describe()}, listening at {settings.socket}", flush=True
                        ),
                    )
                finally:
                    await keeper.end()
