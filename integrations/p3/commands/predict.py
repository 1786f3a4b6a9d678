"""`p3 predict`: would P3 help a profiled model on a network, and by how much?"""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec

from p3 import advice
from p3.commands.options import NetworkOptions, add_network, rate
from p3.cuts import CUTTINGS
from p3.profile import read_profile


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    command = commands.add_parser(
        "predict",
        help="tell whether P3 would help a model on a network, by how much, and what binds",
        description="A model of the network, not a measurement: docs/predict.md says how near "
        "it comes.",
    )
    command.add_argument("profile", type=Path, help="a file that `p3 profile` wrote")
    command.add_argument("--nodes", type=int, required=True)
    command.add_argument("--rate", type=rate, required=True, help="a link's, like 10gbit")
    add_network(command)
    command.add_argument("--json", action="store_true", help="numbers instead of words")
    command.set_defaults(command=_main)


def _main(parsed: argparse.Namespace) -> int:
    network = NetworkOptions(parsed).network(parsed.nodes, parsed.rate)
    told = advice.advise(read_profile(parsed.profile), network)
    if parsed.json:
        print(msgspec.json.format(msgspec.json.encode(told, enc_hook=_name)).decode())
    else:
        print(advice.text(told))
    return 0


def _name(value: object) -> str:
    """A function among the numbers is a way to cut bands, which has a name."""
    for name, cutting in CUTTINGS.items():
        if cutting is value:
            return name
    raise NotImplementedError(f"{value!r} cannot be printed as JSON")
