"""A chain of network namespaces, the middle ones routers: a path for probes, IPv4 and IPv6."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from p3_shaper.cluster_nodes import batch


@dataclass(frozen=True)
class Chain:
    """Nodes from one end to the other; router k is `nodes[k]`, and the k-th hop of node 0."""

    nodes: tuple[str, ...]

    def address(self, node: int, version: int) -> str:
        """A node's address, on its link towards node 0."""
        return f"10.79.{node - 1}.2" if version == 4 else f"fd79:a{node - 1}::2"

    @property
    def far(self) -> int:
        return len(self.nodes) - 1

    @contextmanager
    def rules(self, node: int, text: str) -> Iterator[None]:
        """nftables rules at a node, a line each: `HOOK RULE`."""
        lines = ["table inet path {"]
        for number, (hook, _, rule) in enumerate(line.partition(" ") for line in text.splitlines()):
            kind = f"type filter hook {hook} priority -150;"
            lines.append(f"chain c{number} {{ {kind} {rule}; }}")
        self.nft(node, "\n".join([*lines, "}"]))
        try:
            yield
        finally:
            self.nft(node, "flush ruleset")

    def nft(self, node: int, commands: str) -> None:
        argv = [*within(self.nodes[node]), "nft", "-f", "-"]
        subprocess.run(argv, input=commands, text=True, check=True)

    def limit_icmp(self, node: int, milliseconds: int) -> None:
        """How long a node waits between two ICMP errors to one host; its burst is 6."""
        for version in ("ipv4/icmp_ratelimit", "ipv6/icmp/ratelimit"):
            _sysctl(self.nodes[node], version, str(milliseconds))


def within(namespace: str) -> list[str]:
    return ["ip", "netns", "exec", namespace]


@contextmanager
def chain(routers: int) -> Iterator[Chain]:
    """Make a chain with so many routers, whose ICMP errors are not limited; removed at the end."""
    made = Chain(tuple(f"p3t-{os.getpid()}-chain{index}" for index in range(routers + 2)))
    with ExitStack() as exits:
        for name in made.nodes:
            batch("ip", [f"netns add {name}"])
            exits.callback(batch, "ip", [f"netns del {name}"])
            for default in ("ipv6/conf/default/accept_dad", "ipv6/conf/all/accept_dad"):
                _sysctl(name, default, "0")
        for index in range(routers + 1):
            _join(made, index)
        for index, name in enumerate(made.nodes):
            _route(made, index)
            if 0 < index < made.far:
                _sysctl(name, "ipv4/ip_forward", "1")
                _sysctl(name, "ipv6/conf/all/forwarding", "1")
            made.limit_icmp(index, 0)
        yield made


def _join(made: Chain, index: int) -> None:
    """Link `index` joins nodes `index` and `index` + 1."""
    left, right = made.nodes[index], made.nodes[index + 1]
    batch("ip", [f"link add right type veth peer name left netns {right}"], left)
    for name, device, end in ((left, "right", 1), (right, "left", 2)):
        batch(
            "ip",
            [
                "link set lo up",
                f"addr add 10.79.{index}.{end}/24 dev {device}",
                f"addr add fd79:a{index}::{end}/64 dev {device} nodad",
                f"link set {device} up",
            ],
            name,
        )


def _route(made: Chain, index: int) -> None:
    """To the links that are not a node's own, by its neighbour on that side."""
    lines = []
    for link in range(made.far):
        if link > index:
            lines += [f"route add 10.79.{link}.0/24 via 10.79.{index}.2"]
            lines += [f"route add fd79:a{link}::/64 via fd79:a{index}::2"]
        elif link < index - 1:
            lines += [f"route add 10.79.{link}.0/24 via 10.79.{index - 1}.1"]
            lines += [f"route add fd79:a{link}::/64 via fd79:a{index - 1}::1"]
    batch("ip", lines, made.nodes[index])


def _sysctl(namespace: str, name: str, value: str) -> None:
    write = f"echo {value} > /proc/sys/net/{name}"
    subprocess.run([*within(namespace), "sh", "-c", write], check=True)
