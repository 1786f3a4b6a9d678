"""What `p3-agent run`, `plan` and `restore` do."""

from __future__ import annotations

from p3_agent.config import Settings
from p3_agent.control import listening
from p3_agent.daemon import Daemon, stop_on_signals
from p3_agent.keeper import Keeper
from p3_agent.original import Original
from p3_agent.site import require_net_admin, survey
from p3_agent.state import StateStore
from p3_shaper import plan as planning
from p3_shaper.netlink import open_netlink


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


async def plan(settings: Settings) -> str:
    """What `run` would do now, a line a step; changes nothing. Raises what `run` would raise."""
    async with open_netlink() as netlink:
        site = await survey(netlink, settings)
        observed = await netlink.observe(site.link.index)
        original = Original(netlink, site.link, StateStore(settings.state_dir))
        original.check(observed, takeover=settings.takeover)
        steps = planning.plan(site.wanted, observed, takeover=settings.takeover)
    lines = [step.describe() for step in steps] or ["nothing to do: it is in place"]
    return "\n".join((site.describe(), *lines))


async def restore(settings: Settings) -> str:
    """Put back what an agent that was killed left; a line a step. Raises one of SENTENCES."""
    require_net_admin()
    store = StateStore(settings.state_dir)
    async with open_netlink() as netlink:
        link = await netlink.link(settings.device)
        original = Original(netlink, link, store)
        with store.lock(original.identity):
            steps = await original.put_back(takeover=settings.takeover)
    if not steps:
        return f"{link.name}: nothing to put back"
    return "\n".join((f"{link.name}: put back what was there", *steps))
