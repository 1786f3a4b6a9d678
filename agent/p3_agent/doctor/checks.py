"""Every check, one after another. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from p3_agent.doctor import checks_agent, checks_link, checks_path, checks_traffic
from p3_agent.doctor.facts import Facts
from p3_agent.doctor.findings import Finding, by_weight

Check = Callable[[Facts], Iterator[Finding]]

CHECKS: tuple[Check, ...] = (
    checks_agent.kinds,
    checks_agent.agent,
    checks_agent.managers,
    checks_link.state,
    checks_link.speed,
    checks_link.burst,
    checks_link.queues,
    checks_link.stack,
    checks_path.root,
    checks_path.egress,
    checks_path.bypasses,
    checks_path.routes,
    checks_path.below,
    checks_path.rewrites,
    checks_path.ipv6,
    checks_traffic.congestion,
    checks_traffic.unsent,
    checks_traffic.bottleneck,
    checks_traffic.drops,
    checks_agent.unseen,
)


def diagnose(facts: Facts) -> tuple[Finding, ...]:
    """What is wrong, the worst first."""
    return by_weight(finding for check in CHECKS for finding in check(facts))
