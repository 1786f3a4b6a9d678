"""The interface itself: state, speed against rate, GSO against burst, queues. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from p3_agent.doctor.facts import Facts
from p3_agent.doctor.findings import Finding, Level
from p3_agent.doctor.mends import hold_to, start_anew
from p3_agent.modes import HTB_SOFTWARE_LIMIT
from p3_agent.site import TRUE_SPEED
from p3_shaper.limits import ticks_bytes
from p3_shaper.rates import Rate

_HEADER = 14
_WIRE = 24
"""Bytes that Ethernet adds to a frame and no qdisc counts: preamble 8, checksum 4, gap 12."""
_LONG_MS = 10
"""A packet that occupies the link for longer delays an urgent one noticeably."""
_RING_MS = 2


def state(facts: Facts) -> Iterator[Finding]:
    """Down, without carrier, or half duplex."""
    name = facts.link.name
    if not facts.link.is_up:
        yield Finding("link", Level.ERROR, f"{name} is down", f"ip link set dev {name} up")
    elif not facts.hardware.carrier:
        yield Finding(
            "link", Level.ERROR, f"{name} has no carrier: its other end is down", f"ethtool {name}"
        )
    if facts.hardware.duplex == "half":
        yield Finding(
            "link",
            Level.WARNING,
            f"{name} negotiated half duplex: what comes in delays what goes out",
            f"ethtool -s {name} autoneg on",
        )


def speed(facts: Facts) -> Iterator[Finding]:
    """A rate at which the queue would be below the bands, or none."""
    link, rate = facts.link, facts.rate
    if link.speed is None or link.kind not in TRUE_SPEED or rate is None:
        return
    fits = _payload_rate(link.speed, link.mtu)
    if rate > link.speed:
        seen = (
            f"the bands are held to {rate}, and {link.name} has negotiated {link.speed}: the queue "
            "is in the network card, where nothing has priority"
        )
        yield Finding("speed", Level.ERROR, seen, hold_to(facts, fits))
    elif rate > fits:
        seen = (
            f"{rate} of packets fill more than the {link.speed} of {link.name}, as Ethernet adds "
            f"{_WIRE} bytes to each: the queue is in the network card now and then"
        )
        yield Finding("speed", Level.WARNING, seen, hold_to(facts, fits))


def _payload_rate(speed: Rate, mtu: int) -> Rate:
    """What a qdisc may count at most of a link that carries full packets, in whole Mbit/s."""
    frame = mtu + _HEADER
    bits = speed.bits_per_second * frame // (frame + _WIRE)
    return Rate(max(bits // 10**6 * 10**6, 10**6))


def burst(facts: Facts) -> Iterator[Finding]:
    """HTB classes that cannot send one of the interface's packets at once, and huge packets."""
    link = facts.link
    bursts = [ticks_bytes(item.ceil, item.ceil_burst) for item in facts.tree.classes]
    if facts.agent is not None and bursts and min(bursts) < link.gso_max_size:
        yield Finding(
            "burst",
            Level.WARNING,
            f"{link.name} hands over packets of up to {link.gso_max_size} bytes, and the bands "
            f"have bursts of {min(bursts)}: the rate is not reached; its GSO size was raised "
            "after the agent started",
            start_anew(facts),
        )
    rate = facts.rate
    if rate is None:
        return
    milliseconds = 1000 * link.gso_max_size / rate.bytes_per_second
    if milliseconds > _LONG_MS:
        fits = max(rate.bytes_per_second * _LONG_MS // 1000, 2 * link.mtu)
        yield Finding(
            "burst",
            Level.WARNING,
            f"one packet of {link.gso_max_size} bytes takes {milliseconds:.0f} ms at {rate}, and "
            "an urgent one waits for it",
            f"ip link set dev {link.name} gso_max_size {fits}",
        )


def queues(facts: Facts) -> Iterator[Finding]:
    """What one root over many queues costs, and a driver that queues without bound."""
    link, rate, hardware = facts.link, facts.rate, facts.hardware
    if link.kind:
        return
    one_root = facts.agent is None or not facts.agent.mode.startswith("mq+")
    if one_root and link.tx_queues > 1 and rate is not None and rate > HTB_SOFTWARE_LIMIT:
        yield Finding(
            "queues",
            Level.WARNING,
            f"{link.name} has {link.tx_queues} transmit queues, and the bands are one root before "
            f"them, whose one lock carries about {HTB_SOFTWARE_LIMIT}; {rate} was asked for",
            f"p3-agent run --dev {link.name} --mode mq+prio  # docs/trees.md tells what it costs",
        )
    limits = hardware.queue_limits
    if not limits:
        yield Finding(
            "queues",
            Level.NOTE,
            f"the driver of {link.name} does not bound the bytes in its queues (no BQL): only a "
            "rate under the bottleneck's keeps the queue in the bands",
            f"ethtool --set-ring {link.name} tx 256",
        )
    elif rate is not None and max(limits) > rate.bytes_per_second * _RING_MS // 1000:
        yield Finding(
            "queues",
            Level.NOTE,
            f"up to {max(limits)} bytes wait in a transmit queue of {link.name}, more than "
            f"{_RING_MS} ms at {rate}: urgent packets do not overtake these",
            f"for q in /sys/class/net/{link.name}/queues/tx-*; do echo "
            f"{rate.bytes_per_second * _RING_MS // 1000} >$q/byte_queue_limits/limit_max; done",
        )


def stack(facts: Facts) -> Iterator[Finding]:
    """Containers, bridges and bonds: where another queue may follow, or ours is passed by."""
    link = facts.link
    master_kind = facts.others.get(facts.master, "")
    if master_kind in ("bond", "team"):
        yield Finding(
            "stack",
            Level.NOTE,
            f"{link.name} is a port of the {master_kind} {facts.master}: its other "
            "ports need bands of their own",
            f"ls -d /sys/class/net/{facts.master}/lower_*",
        )
    if link.kind == "bridge":
        yield Finding(
            "stack",
            Level.WARNING,
            f"{link.name} is a bridge: frames between its ports, those of containers and virtual "
            "machines, never meet its qdisc",
            f"ls /sys/class/net/{link.name}/brif  # run the agent on the port that leads out",
        )
    if link.kind == "veth":
        yield Finding(
            "stack",
            Level.NOTE,
            f"{link.name} is one end of a veth pair: its bytes queue again on the way out of the "
            "host, where this node's bands are unknown unless an agent keeps them there too",
            "p3-agent run --dev DEV  # on the host, on the interface that leads out",
        )
    inside = sorted(name for name, kind in facts.others.items() if kind == "veth")
    if inside and link.kind != "veth":
        yield Finding(
            "stack",
            Level.NOTE,
            f"{len(inside)} veth interfaces lead to containers (first {inside[0]}): their marks "
            f"count on {link.name}, their socket priorities are lost, and their sockets do not "
            "slow down for a queue here",
            f"p3-agent run --dev {inside[0]}  # or in the container, to keep its queue short",
        )
