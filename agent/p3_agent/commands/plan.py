"""`p3-agent plan`: what `run` would do now."""

from __future__ import annotations

import asyncio
from argparse import Namespace

from p3_agent.commands.options import Commands, add_settings, settings
from p3_agent.config import Settings
from p3_agent.original import Original
from p3_agent.site import survey
from p3_agent.state import StateStore
from p3_shaper import plan as planning
from p3_shaper.netlink import open_netlink


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    command = commands.add_parser("plan", help="print what `run` would do, and change nothing")
    add_settings(command)
    command.set_defaults(command=_main)


def _main(parsed: Namespace) -> int:
    print(asyncio.run(plan(settings(parsed))))
    return 0


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
