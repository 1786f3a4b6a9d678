"""A daemon in this process that looks at a namespace's eth0; it may read there, not change."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from agent.running import Place

from p3_agent.config import Options, settings
from p3_agent.confirmation import Confirmation
from p3_agent.daemon import Daemon
from p3_agent.keeper import Keeper
from p3_agent.notify import Notifier
from p3_agent.orders import Orders
from p3_agent.site import survey
from p3_agent.state import StateStore
from p3_shaper.netlink import open_netlink


@asynccontextmanager
async def daemon_of(here: Place) -> AsyncIterator[Daemon]:
    """The daemon of an agent that has not begun yet."""
    chosen = settings(Options(device="eth0", rate="200mbit", state_dir=str(here.state)))
    async with open_netlink(here.name) as netlink:
        site = await survey(netlink, chosen)
        keeper = Keeper(netlink, StateStore(here.state), site, takeover=False)
        orders = Orders(asyncio.Event(), asyncio.Event(), lambda: chosen, Notifier({}))
        yield Daemon(chosen, keeper, Confirmation(None), orders)
