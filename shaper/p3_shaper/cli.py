"""`p3-shape`: limits an interface for an experiment, and takes the limit away again."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from functools import partial

from p3_shaper.console import carried_out
from p3_shaper.errors import TcError
from p3_shaper.limits import link_queue_bytes
from p3_shaper.netlink import open_netlink
from p3_shaper.plan import ForeignRootError, PlanError
from p3_shaper.rates import RateError, SizeError, parse_rate, parse_size, size_text
from p3_shaper.shape import Limit, shape_in, shape_out, unshape
from p3_shaper.tcmessage import handle_text
from p3_shaper.tree import TreeError

_FAILED = 1
_USAGE = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; its exit status: 0 done, 1 not possible, 2 wrongly asked."""
    options = parser().parse_args(arguments, _Options())
    try:
        limit = _limit(options)
    except (RateError, SizeError) as error:
        return _fail(str(error), _USAGE)
    return carried_out("p3-shape", partial(_shape, options, limit))


def _shape(options: _Options, limit: Limit | None) -> int:
    try:
        asyncio.run(_run(options, limit))
    except ForeignRootError as error:
        hook = "ingress" if options.ingress else "root"
        return _fail(
            f"{options.device} has the qdisc {error.root.kind} {handle_text(error.root.handle)} "
            "which p3-shape did not make, so nothing was changed: remove it first, with "
            f"`tc qdisc del dev {options.device} {hook}`"
        )
    except (PlanError, TcError, TreeError) as error:
        return _fail(f"{options.device}: {error}")
    return 0


class _Options(argparse.Namespace):
    device: str
    rate: str | None
    ingress: bool
    buffer: str | None
    clear: bool
    dry_run: bool
    netns: str | None
    json: bool


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    made = argparse.ArgumentParser(
        prog="p3-shape",
        description="Limits an interface to a rate for an experiment, and takes the limit away.",
    )
    add = made.add_argument
    add("device", metavar="DEV", help="the interface")
    add("rate", metavar="RATE", nargs="?", help="bits a second with a unit, like 200mbit or 1gbit")
    add("--ingress", action="store_true", help="limit what comes in, instead of what goes out")
    add("--buffer", metavar="SIZE", help="bytes that may wait, like 256KB (default: 50 ms of RATE)")
    add("--clear", action="store_true", help="remove what p3-shape made here, in both directions")
    add("--dry-run", action="store_true", help="show what would be done, and change nothing")
    add("--json", action="store_true", help="for programs: one JSON object")
    add("--netns", metavar="NS", help="the network namespace that DEV is in")
    return made


def _limit(options: _Options) -> Limit | None:
    """What was asked for; None to clear."""
    if options.clear:
        if options.rate is not None or options.buffer is not None:
            raise RateError("--clear takes neither RATE nor --buffer: leave them out")
        return None
    if options.rate is None:
        raise RateError("there is no rate: name one, like 200mbit, or --clear")
    rate = parse_rate(options.rate)
    size = parse_size(options.buffer) if options.buffer else link_queue_bytes(rate)
    return Limit(rate, size)


async def _run(options: _Options, limit: Limit | None) -> None:
    async with open_netlink(options.netns) as netlink:
        link = await netlink.link(options.device)
        if limit is None:
            done = await unshape(netlink, link, dry_run=options.dry_run)
            result = "would not be" if options.dry_run else "not"
            result += " limited by p3-shape"
        else:
            shape = shape_in if options.ingress else shape_out
            done = await shape(netlink, link, limit, dry_run=options.dry_run)
            result = "would be " if options.dry_run else ""
            result += f"{limit.rate} {'in' if options.ingress else 'out'}"
            result += f", buffer {size_text(limit.buffer_bytes)}"
    if options.json:
        print(_as_json(options, limit, done))
        return
    for line in done if options.dry_run else ():
        print(line)
    print(f"{link.name}: {result}")


def _as_json(options: _Options, limit: Limit | None, steps: Sequence[str]) -> str:
    shown = {
        "device": options.device,
        "direction": "in" if options.ingress else "out",
        "rate": None if limit is None else limit.rate.bits_per_second,
        "buffer": None if limit is None else limit.buffer_bytes,
        "dry_run": options.dry_run,
        "steps": list(steps),
    }
    return json.dumps(shown, indent=2)


def _fail(sentence: str, status: int = _FAILED) -> int:
    print(f"p3-shape: {sentence}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
