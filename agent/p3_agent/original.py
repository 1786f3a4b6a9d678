"""What was at an interface before the agent: saved before the first change, put back at the end."""

from __future__ import annotations

import logging

from p3_agent.errors import AgentError
from p3_agent.state import Identity, Saved, StateStore
from p3_shaper.link import Link
from p3_shaper.netlink import Netlink, Snapshot
from p3_shaper.operations import Operation, messages_of, remove
from p3_shaper.plan import clear
from p3_shaper.tcmessage import handle_text
from p3_shaper.tree import AGENT_MAJOR, Tree

log = logging.getLogger(__name__)


def is_ours(tree: Tree) -> bool:
    """Whether an agent's qdisc is at the root."""
    return tree.owner == AGENT_MAJOR


def is_others(tree: Tree) -> bool:
    """Whether a qdisc is at the root that is neither an agent's nor the kernel's default."""
    return tree.root is not None and not is_ours(tree)


class Original:
    """One interface's original. The caller holds the interface (see `lock`).

    Whoever had it kept puts back what it was, whatever became of the file meanwhile.
    """

    def __init__(self, netlink: Netlink, link: Link, store: StateStore) -> None:
        self._netlink = netlink
        self._link = link
        self._store = store
        self._identity = Identity.here(link.index, link.mac)
        self._kept: Saved | None = None

    def check(self, observed: Tree, *, takeover: bool) -> None:
        """Raise AgentError unless the agent may put its tree where `observed` is."""
        if takeover:
            return
        saved = self._store.load(self._identity)
        if is_others(observed):
            raise AgentError(self._refusal(observed, saved))
        if is_ours(observed) and saved is None:
            raise AgentError(
                f"{self._link.name} carries an agent's tree, and what was there before is not "
                "saved in this --state-dir: name the one it was started with, or pass --takeover "
                "(the kernel's default is then what is put back)"
            )

    async def keep(self, observed: Tree, *, takeover: bool) -> bool:
        """Have the original on the disk before anything changes; whether it was saved only now.

        An agent's tree that is found is adopted: its original is the one saved before it. Raises
        AgentError as `check` does, and when it cannot be saved; ReplayError if what is there could
        not be put back.
        """
        self.check(observed, takeover=takeover)
        self._store.sweep(self._identity.boot)
        saved = self._store.load(self._identity)
        if saved is not None:
            snapshot = Snapshot.from_bytes(saved.snapshot)
            if not is_others(observed) or _is_part(snapshot, saved, observed):
                log.info("%s: taking up where an agent that was killed left off", self._link.name)
                self._kept = self._save(snapshot) if saved.restoring else saved
                return False
        if is_ours(observed):
            snapshot = Snapshot(self._link.index, self._link.name, self._link.mac)
        else:
            snapshot = await self._netlink.snapshot(self._link)
        self._kept = self._save(snapshot)
        return True

    async def put_back(self, *, takeover: bool) -> tuple[str, ...]:
        """Put the original back, also where an earlier try was cut short; the steps taken.

        Raises AgentError when another's qdisc is there by now and there is no `takeover`, and
        whatever the kernel refuses; what was saved stays until it is back.
        """
        observed = await self._netlink.observe(self._link.index)
        saved = self._kept or self._store.load(self._identity)
        if saved is None:
            return await self._clear(observed, takeover=takeover)
        snapshot = Snapshot.from_bytes(saved.snapshot)
        steps: list[Operation] = []
        if is_others(observed) and snapshot.messages != observed.messages:
            if not takeover and not _is_part(snapshot, saved, observed):
                raise AgentError(
                    f"{self._link.name} has a root qdisc that another program put in the agent's "
                    f"place, {_root_text(observed)}: leave it, or pass --takeover to put back what "
                    "was there before the agent"
                )
            root, *below = messages_of(observed)
            steps.append(remove(root, below))
            await self._netlink.apply(self._link.index, steps)
        if snapshot.messages:
            self._note_restoring(snapshot)
        steps += await self._netlink.restore(self._link.index, snapshot)
        self.forget()
        return tuple(step.describe() for step in steps)

    def forget(self) -> None:
        """Nothing is to be put back any more."""
        self._store.remove(self._identity)
        self._kept = None

    def _save(self, snapshot: Snapshot, *, restoring: bool = False) -> Saved:
        saved = Saved(self._link.name, snapshot.to_bytes(), restoring=restoring)
        self._store.save(self._identity, saved)
        return saved

    def _note_restoring(self, snapshot: Snapshot) -> None:
        """A note for whoever finishes this if it is cut short; without it we go on all the same."""
        try:
            self._save(snapshot, restoring=True)
        except AgentError as error:
            log.warning("%s", error)

    async def _clear(self, observed: Tree, *, takeover: bool) -> tuple[str, ...]:
        """Without an original: an agent's tree goes for the kernel's default, if that is wanted."""
        if is_ours(observed):
            self.check(observed, takeover=takeover)
        steps = clear(observed, AGENT_MAJOR)
        await self._netlink.apply(self._link.index, steps)
        self.forget()
        return tuple(step.describe() for step in steps)

    def _refusal(self, observed: Tree, saved: Saved | None) -> str:
        advice = "pass --takeover to replace it"
        if saved is None:
            advice += " (it is put back at the end), or remove it with `tc qdisc del`"
        else:
            restore = f"p3-agent restore --dev {self._link.name}"
            advice = f"an agent was killed here: run `{restore}` first, or {advice}"
        return (
            f"{self._link.name} has a root qdisc that is not the agent's, "
            f"{_root_text(observed)}: {advice}"
        )


def _is_part(snapshot: Snapshot, saved: Saved, observed: Tree) -> bool:
    """Whether `observed` is what a cut short restore has put back so far."""
    root = observed.root
    if not saved.restoring or root is None or not snapshot.messages:
        return False
    first = snapshot.messages[0]
    return (first.kind, first.handle) == (root.kind, root.handle)


def _root_text(observed: Tree) -> str:
    root = observed.root
    return "" if root is None else f"{root.kind} {handle_text(root.handle)}"
