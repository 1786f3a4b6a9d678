"""Whether an agent can work here, does, and is left alone. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from p3_agent.doctor.facts import Facts, ManagedBy
from p3_agent.doctor.findings import Finding, Level
from p3_agent.original import is_others

_INSTALL = "modprobe {module} || apt install linux-modules-extra-$(uname -r)"


def kinds(facts: Facts) -> Iterator[Finding]:
    """Qdiscs and classifiers that this kernel lacks."""
    missing = facts.missing
    if "u32" in missing or "bfifo" in missing:
        yield _lacks(Level.ERROR, sorted(missing & {"u32", "bfifo"}), "no mode works without")
    if {"htb", "prio"} <= missing:
        yield _lacks(Level.ERROR, ["htb", "prio"], "a mode needs one of them")
    elif "htb" in missing:
        yield _lacks(Level.WARNING, ["htb"], "no band has a guarantee, and no rate is held")
    elif "prio" in missing:
        yield _lacks(Level.NOTE, ["prio"], "htb is what is left: a rate is needed, 7 bands at most")


def _lacks(level: Level, names: list[str], why: str) -> Finding:
    modules = [
        ("cls_" if name == "u32" else "sch_") + name.replace("bfifo", "fifo") for name in names
    ]
    return Finding(
        "kinds",
        level,
        f"this kernel has no {' and no '.join(names)}: {why}",
        _INSTALL.format(module=" ".join(modules)),
    )


def agent(facts: Facts) -> Iterator[Finding]:
    """An agent that is not there, not in order, or not left in peace."""
    name, status = facts.link.name, facts.agent
    if status is None:
        yield Finding(
            "agent",
            Level.NOTE,
            f"no agent keeps bands on {name}",
            f"p3-agent run --dev {name} --rate RATE",
        )
        return
    if status.state != "ok" and not is_others(facts.tree):  # which `root` tells of
        yield Finding("agent", Level.ERROR, status.state, f"tc -s qdisc show dev {name}")
    if status.drift.repairs:
        last = "; ".join(status.drift.last[:2])
        yield Finding(
            "agent",
            Level.WARNING,
            f"another program changed the bands {_times(status.drift.repairs)}, and they were "
            f"repaired (last: {last}): find it",
            f"tc monitor dev {name}",
        )


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def managers(facts: Facts) -> Iterator[Finding]:
    """Programs that are told to set this interface's qdiscs, and will set them again."""
    for manager in facts.managers:
        yield Finding(
            "managers",
            Level.WARNING,
            f"{manager.program} is told to set the qdiscs of {facts.link.name}, by "
            f"[{manager.section}] in {manager.file}: it replaces the bands when it configures "
            "the interface again",
            _forget(manager),
        )


def _forget(manager: ManagedBy) -> str:
    if manager.program == "NetworkManager":
        return f"nmcli connection modify '{manager.profile}' remove {manager.section}"
    return f"${{EDITOR:-vi}} {manager.file} && networkctl reload"


def unseen(facts: Facts) -> Iterator[Finding]:
    """What could not be looked at."""
    for what in facts.unseen:
        yield Finding("unseen", Level.NOTE, what, f"sudo p3-agent doctor --dev {facts.link.name}")
