"""Firewall rules that change the DSCP: nftables' and iptables'. Parsing is pure."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec

from p3_agent.doctor.facts import Rewrite

_PATH = ":/usr/sbin:/sbin"
_PATIENCE_S = 10.0
_TARGETS = frozenset({"DSCP", "TOS"})
_LEGACY = (
    (Path("/proc/net/ip_tables_names"), "iptables-legacy"),
    (Path("/proc/net/ip6_tables_names"), "ip6tables-legacy"),
)


class _Payload(msgspec.Struct, frozen=True):
    protocol: str = ""
    field: str = ""


class _Key(msgspec.Struct, frozen=True):
    payload: _Payload | None = None


class _Mangle(msgspec.Struct, frozen=True):
    key: _Key


class _Xt(msgspec.Struct, frozen=True):
    name: str = ""


class _Statement(msgspec.Struct, frozen=True):
    mangle: _Mangle | None = None
    xt: _Xt | None = None

    @property
    def sets_dscp(self) -> bool:
        if self.xt is not None and self.xt.name in _TARGETS:
            return True
        payload = None if self.mangle is None else self.mangle.key.payload
        return payload is not None and payload.field == "dscp"


class _Chain(msgspec.Struct, frozen=True):
    family: str
    table: str
    name: str
    hook: str = ""


class _Rule(msgspec.Struct, frozen=True):
    family: str
    table: str
    chain: str
    handle: int
    expr: tuple[_Statement, ...] = ()


class _Item(msgspec.Struct, frozen=True):
    chain: _Chain | None = None
    rule: _Rule | None = None


class _Ruleset(msgspec.Struct, frozen=True):
    nftables: tuple[_Item, ...]


def nft_rewrites(ruleset: bytes) -> Iterator[Rewrite]:
    """Rules that set the DSCP in what `nft --json list ruleset` says (libnftables-json(5)).

    ValueError if it is not understood. Tables of p3-agent's own are left out.
    """
    items = msgspec.json.decode(ruleset, type=_Ruleset).nftables
    chains = {
        (item.chain.family, item.chain.table, item.chain.name): item.chain.hook
        for item in items
        if item.chain is not None
    }
    for rule in (item.rule for item in items):
        if rule is None or rule.table.startswith("p3") or not _sets_dscp(rule):
            continue
        place = f"{rule.family} {rule.table} {rule.chain}"
        hook = chains.get((rule.family, rule.table, rule.chain), "")
        yield Rewrite(
            f"nftables' {place}",
            hook or "of the chains that jump to it",
            f"nft delete rule {place} handle {rule.handle}",
        )


def _sets_dscp(rule: _Rule) -> bool:
    return any(statement.sets_dscp for statement in rule.expr)


def iptables_rewrites(tool: str, saved: str) -> Iterator[Rewrite]:
    """Rules that set the DSCP in what `iptables-save -t mangle` says."""
    for line in saved.splitlines():
        words = line.split()
        if words[:1] == ["-A"] and "-j" in words and words[words.index("-j") + 1] in _TARGETS:
            rest = " ".join(words[1:])
            yield Rewrite(f"{tool}'s mangle", words[1], f"{tool} -t mangle -D {rest}")


def look(unseen: list[str]) -> tuple[Rewrite, ...]:
    """Every such rule of this network namespace; adds to `unseen` what could not be looked at."""
    found: list[Rewrite] = []
    said = _run(("nft", "--json", "list", "ruleset"), unseen)
    if said is not None:
        try:
            found += nft_rewrites(said)
        except msgspec.MsgspecError as error:
            unseen.append(f"nftables' rules are not understood: {error}")
    for names, tool in _LEGACY:
        if _has_mangle(names):
            said = _run((f"{tool}-save", "-t", "mangle"), unseen)
            found += iptables_rewrites(tool, (said or b"").decode("utf-8", "replace"))
    return tuple(found)


def _has_mangle(names: Path) -> bool:
    try:
        return "mangle" in names.read_text("ascii").split()
    except OSError:
        return False  # no iptables in the kernel; or no root, which nft has said already


def _run(command: tuple[str, ...], unseen: list[str]) -> bytes | None:
    program = shutil.which(command[0], path=os.environ.get("PATH", "") + _PATH)
    if program is None:
        unseen.append(
            f"{command[0]} is not installed: rules that change the DSCP were not looked for"
        )
        return None
    try:
        done = subprocess.run(
            (program, *command[1:]), capture_output=True, timeout=_PATIENCE_S, check=False
        )
    except subprocess.TimeoutExpired:
        unseen.append(f"{command[0]} did not answer within {_PATIENCE_S:g} s")
        return None
    if done.returncode != 0:
        why = done.stderr.decode("utf-8", "replace").strip().partition("\n")[0]
        unseen.append(f"rules that change the DSCP were not looked for: {command[0]} says {why!r}")
        return None
    return done.stdout
