"""`p3-agent restore`: put back what an agent that was killed left."""

from __future__ import annotations

import asyncio
from argparse import Namespace

from p3_agent.commands.options import Commands, add_json, add_place, settings
from p3_agent.config import Settings
from p3_agent.lock import hold
from p3_agent.original import Original
from p3_agent.report import object_text
from p3_agent.site import require_net_admin
from p3_agent.state import StateStore
from p3_shaper.netlink import Netlink, open_netlink


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    command = commands.add_parser(
        "restore", help="after a crash: put back what was there before the agent"
    )
    add_place(command)
    add_json(command)
    command.set_defaults(command=_main)


def _main(parsed: Namespace) -> int:
    chosen = settings(parsed)
    steps = asyncio.run(restore(chosen))
    if parsed.json:
        print(object_text({"device": chosen.device, "steps": steps}))
    else:
        what = "put back what was there" if steps else "nothing to put back"
        print("\n".join((f"{chosen.device}: {what}", *steps)))
    return 0


async def restore(settings: Settings) -> tuple[str, ...]:
    """Put back what an agent that was killed left; the steps taken. Raises one of SENTENCES."""
    require_net_admin()
    async with open_netlink() as netlink:
        return await put_back(netlink, StateStore(settings.state_dir), settings)


async def put_back(netlink: Netlink, store: StateStore, settings: Settings) -> tuple[str, ...]:
    """The same, for whoever has netlink open."""
    link = await netlink.link(settings.device)
    with hold(link, store.directory):
        return await Original(netlink, link, store).put_back(takeover=settings.takeover)
