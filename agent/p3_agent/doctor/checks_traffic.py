"""What the sockets and queues show: congestion control, bytes that wait, where they wait. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from p3_agent.doctor.facts import Facts, Load
from p3_agent.doctor.findings import Finding, Level
from p3_agent.doctor.mends import hold_to
from p3_agent.report import speed
from p3_shaper.rates import Rate
from p3_shaper.sockdiag import Socket

_UNSENT = 512 << 10
"""Bytes in one socket that nothing can overtake any more; P3 keeps them at 128 KiB."""
_FULL = 0.9


def congestion(facts: Facts) -> Iterator[Finding]:
    """Cubic's HyStart takes the waiting of a preempted band for congestion."""
    slow = [item for item in facts.sockets if item.congestion == "cubic"]
    if slow and facts.transport.hystart:
        yield Finding(
            "congestion",
            Level.WARNING,
            f"{_who(facts, slow)} with cubic, whose HyStart takes the delay of a band that was "
            "overtaken for congestion: such a socket leaves the link idle for long",
            "echo 0 >/sys/module/tcp_cubic/parameters/hystart",
        )


def unsent(facts: Facts) -> Iterator[Finding]:
    """Sockets that hold much: a more urgent slice of the same band cannot overtake it."""
    full = [item for item in facts.sockets if item.unsent > _UNSENT]
    if full:
        most = max(item.unsent for item in full)
        yield Finding(
            "unsent",
            Level.WARNING,
            f"{_who(facts, full)} with up to {most} bytes that TCP has not sent yet: what is "
            "written next waits for all of it",
            "sysctl -w net.ipv4.tcp_notsent_lowat=131072",
        )


def _who(facts: Facts, sockets: Sequence[Socket]) -> str:
    processes = {facts.holders[item.inode] for item in sockets if item.inode in facts.holders}
    names = sorted(f"{process.command}[{process.pid}]" for process in processes)
    count = "one marked socket" if len(sockets) == 1 else f"{len(sockets)} marked sockets"
    return f"{count} of {', '.join(names[:3])}" if names else count


def bottleneck(facts: Facts) -> Iterator[Finding]:
    """Where the queue is while there is more to send than leaves."""
    load = facts.load
    if load is None or facts.tree.root is None:
        return  # what the kernel's default holds is not counted
    if load.wanting * 2 < load.looks:
        yield Finding(
            "bottleneck",
            Level.NOTE,
            f"marked sockets had nothing waiting during {load.seconds:.1f} s: where a queue forms "
            "shows only under load",
            f"p3-agent doctor --dev {facts.link.name} --seconds 10  # while training",
        )
    elif load.queued_here * 2 < load.looks:
        yield from _elsewhere(facts, load)


def _elsewhere(facts: Facts, load: Load) -> Iterator[Finding]:
    """There is load, and our queue is empty most of the time."""
    name, rate = facts.link.name, facts.rate
    room = Rate(max(int(load.sent * 0.95) // 10**6, 1) * 10**6)
    if rate is not None and load.sent >= _FULL * rate.bits_per_second:
        yield Finding(
            "bottleneck",
            Level.ERROR,
            f"{speed(load.sent)} leave {name}, near the rate of {rate}, and the bands are empty: "
            "the queue is in the network card or just behind it",
            hold_to(facts, room),
        )
    elif load.resent:
        yield Finding(
            "bottleneck",
            Level.ERROR,
            f"only {speed(load.sent)} leave {name}, the bands are empty, and marked sockets sent "
            f"{load.resent} segments again: the queue is behind this node, in a switch or at the "
            "receiver",
            hold_to(facts, room),
        )
    else:
        yield Finding(
            "bottleneck",
            Level.WARNING,
            f"only {speed(load.sent)} leave {name} though sockets have more, and the bands are "
            "empty: something else is the limit, as a receiver that reads slowly or a queue on "
            "the way",
            "ss --tcp --info  # rwnd_limited, sndbuf_limited, cwnd",
        )


def drops(facts: Facts) -> Iterator[Finding]:
    """Queues that overflow."""
    load = facts.load
    if load is not None and load.dropped:
        yield Finding(
            "drops",
            Level.WARNING,
            f"{load.dropped} packets were dropped on {facts.link.name} within {load.seconds:.1f} s",
            f"tc -s qdisc show dev {facts.link.name}  # which queue; then fewer senders, or pacing",
        )
