"""Commands that several checks name. Pure."""

from __future__ import annotations

from p3_agent.doctor.facts import Facts
from p3_shaper.rates import Rate


def hold_to(facts: Facts, rate: Rate) -> str:
    """Have the bands held to `rate`: by the running agent's settings, or by a new agent."""
    name = facts.link.name
    if facts.agent is None:
        return f"p3-agent run --dev {name} --rate {rate}"
    settings = f"/etc/p3-agent/{name}.toml"
    return (
        f"sed -i 's/^rate *=.*/rate = \"{rate}\"/' {settings} && systemctl reload p3-agent@{name}"
    )


def start_anew(facts: Facts) -> str:
    """Have the agent look at everything again."""
    return f"systemctl restart p3-agent@{facts.link.name}"
