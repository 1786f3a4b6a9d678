"""`p3-agent plan`: what `run` would do now."""

from __future__ import annotations

import asyncio
from argparse import Namespace

from p3_agent.commands.options import Commands, add_json, add_settings, settings
from p3_agent.config import Settings
from p3_agent.original import Original
from p3_agent.report import object_text
from p3_agent.site import Site, survey
from p3_agent.state import StateStore
from p3_shaper import plan as planning
from p3_shaper.netlink import open_netlink


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    command = commands.add_parser("plan", help="print what `run` would do, and change nothing")
    add_settings(command)
    add_json(command)
    command.set_defaults(command=_main)


def _main(parsed: Namespace) -> int:
    site, steps = asyncio.run(plan(settings(parsed)))
    print((as_json if parsed.json else as_text)(site, steps))
    return 0


def as_text(site: Site, steps: tuple[str, ...]) -> str:
    """What is kept where, and a line a step."""
    return "\n".join((site.describe(), *(steps or ("nothing to do: it is in place",))))


def as_json(site: Site, steps: tuple[str, ...]) -> str:
    """The same for programs; the rate in bits a second."""
    return object_text({**facts(site), "steps": steps})


def facts(site: Site) -> dict[str, str | int | None]:
    """What is kept where, and why, by name; the rate in bits a second."""
    choice = site.choice
    return {
        "device": site.link.name,
        "mode": choice.mode,
        "rate": None if choice.rate is None else choice.rate.bits_per_second,
        "reason": choice.reason,
    }


async def plan(settings: Settings) -> tuple[Site, tuple[str, ...]]:
    """What `run` would do now, step by step; changes nothing. Raises what `run` would raise."""
    async with open_netlink() as netlink:
        site = await survey(netlink, settings)
        observed = await netlink.observe(site.link.index)
        original = Original(netlink, site.link, StateStore(settings.state_dir))
        original.check(observed, takeover=settings.takeover)
        steps = planning.plan(site.wanted, observed, takeover=settings.takeover)
    return site, tuple(step.describe() for step in steps)
