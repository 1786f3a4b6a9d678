"""`p3-agent apply`: apply the bands and leave them there without an agent."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections.abc import Callable

from p3_agent import logs
from p3_agent.commands.options import Commands, add_confirm, add_json, add_settings, settings
from p3_agent.commands.plan import as_json, as_text
from p3_agent.commands.run import Steps, keep
from p3_agent.config import Settings
from p3_agent.confirmation import Confirmation
from p3_agent.guard import guard
from p3_agent.keeper import Keeper
from p3_agent.orders import by_signals, stop_on_signals
from p3_agent.site import Site, require_net_admin, survey
from p3_agent.state import StateStore
from p3_shaper.netlink import open_netlink

Show = Callable[[Site, Steps], None]


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    command = commands.add_parser(
        "apply", help="apply the bands and leave them, without an agent, until `restore`"
    )
    add_settings(command)
    add_confirm(command)
    add_json(command)
    command.set_defaults(command=_main)


def _main(parsed: Namespace) -> int:
    words = as_json if parsed.json else as_text

    def show(site: Site, steps: Steps) -> None:
        print(words(site, steps), flush=True)

    logs.start(verbose=False)
    chosen = settings(parsed)
    if parsed.confirm is None:
        asyncio.run(apply(chosen, show))
    else:
        asyncio.run(apply_if_confirmed(chosen, parsed.confirm, show))
    return 0


async def apply(settings: Settings, show: Show) -> None:
    """Apply the tree and `show` what was done. Raises one of SENTENCES; nothing was changed then.

    An agent that starts later takes the tree up; `restore` puts back what was there before.
    """
    stop_on_signals()  # which do not cut this off in its middle
    require_net_admin()
    async with open_netlink() as netlink:
        site = await survey(netlink, settings)
        keeper = Keeper(netlink, StateStore(settings.state_dir), site, takeover=settings.takeover)
        with keeper.holding():
            show(site, await keeper.begin())


async def apply_if_confirmed(settings: Settings, seconds: float, show: Show) -> None:
    """The same, and all goes back after so many `seconds` unless `p3-agent confirm` is run.

    Until then it is an agent, which answers at its socket; a signal, too, has it go back. Raises
    NotConfirmedError, too.
    """
    orders = by_signals(lambda: settings)
    require_net_admin()
    confirmation = Confirmation(seconds)
    async with open_netlink() as netlink:
        with guard(settings) as guarding:
            confirmation.then(guarding.release)
            confirmation.then(orders.stop.set)
            await keep(
                netlink,
                StateStore(settings.state_dir),
                settings,
                confirmation,
                orders,
                ready=show,
                stays=confirmation.is_said,
            )
    confirmation.require()
