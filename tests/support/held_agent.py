"""An agent whose next repair hangs from SIGUSR1 to SIGUSR2: arguments are interface and state."""

import asyncio
import signal
import sys

from p3_agent import config
from p3_agent.confirmation import Confirmation
from p3_agent.control import listening
from p3_agent.daemon import Daemon
from p3_agent.keeper import Keeper
from p3_agent.orders import by_signals
from p3_agent.site import survey
from p3_agent.state import StateStore
from p3_shaper.netlink import open_netlink


async def hold(keeper: Keeper, begin: asyncio.Event, end: asyncio.Event) -> None:
    await begin.wait()
    async with keeper.quiet():
        print("held", flush=True)
        await end.wait()


async def main(device: str, state: str) -> None:
    chosen = config.settings(
        config.Options(device=device, rate="200mbit", state_dir=state, reconcile_s=0.02)
    )
    loop, begin, end = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
    loop.add_signal_handler(signal.SIGUSR1, begin.set)
    loop.add_signal_handler(signal.SIGUSR2, end.set)
    async with open_netlink() as netlink:
        site = await survey(netlink, chosen)
        keeper = Keeper(netlink, StateStore(chosen.state_dir), site, takeover=False)
        daemon = Daemon(chosen, keeper, Confirmation(None), by_signals(lambda: chosen))
        with keeper.holding(), listening(chosen.socket) as listener:
            async with netlink.watch(site.link.index, site.link.name) as watch:
                await keeper.begin()
                await daemon.serve(
                    listener,
                    watch,
                    ready=lambda: print("ready", flush=True),
                    beside=[lambda: hold(keeper, begin, end)],
                )
                await keeper.end()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
