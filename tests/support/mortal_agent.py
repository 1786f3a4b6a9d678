"""An agent that ends by SIGKILL after each step of its life in turn, and who mends that then.

Run in a node's namespace: `python mortal_agent.py STATE_DIRECTORY ADDRESS PORT TREE…`, with the
lines of tc for another program's tree. Agents run in forked children. A TCP connection to the
echo server at ADDRESS lives through everything and must carry data after every death and every
repair. Ends with a traceback at the first surprise, else prints how many deaths there were.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path

from support.rawtc import Raw, raw

from p3_agent import config
from p3_agent.commands.restore import put_back
from p3_agent.commands.run import keep
from p3_agent.confirmation import Confirmation
from p3_agent.keeper import Keeper
from p3_agent.notify import Notifier
from p3_agent.orders import Orders
from p3_agent.site import survey
from p3_agent.state import Identity, Saved, StateStore
from p3_shaper.bands import BandTable
from p3_shaper.channel import Channel
from p3_shaper.netlink import Netlink
from p3_shaper.rates import parse_rate
from p3_shaper.tcmessage import Object, Verb

DEVICE = "eth0"
CHUNK = bytes(range(256)) * 256


class Steps:
    """Counts what changes the kernel or the disk, and kills this process after the last."""

    def __init__(self, last: int) -> None:
        self._left = last

    def taken(self) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


class MortalChannel(Channel):
    """Tells of each change that the kernel has carried out."""

    steps: Steps

    async def change(self, verb: Verb, kind: Object, body: bytes) -> None:
        await super().change(verb, kind, body)
        self.steps.taken()


class MortalStore(StateStore):
    """Tells of each file that was written, by half and whole, or removed."""

    def __init__(self, directory: Path, steps: Steps) -> None:
        super().__init__(directory)
        self._steps = steps

    def save(self, identity: Identity, saved: Saved) -> None:
        self.path(identity).with_suffix(".tmp").write_bytes(b"{")
        self._steps.taken()
        super().save(identity, saved)
        self._steps.taken()

    def remove(self, identity: Identity) -> None:
        super().remove(identity)
        self._steps.taken()


Work = Callable[[Netlink, StateStore], Coroutine[None, None, None]]


class Trial:
    """One interface, its original, and everybody who works on it."""

    def __init__(self, state: Path, flow: socket.socket) -> None:
        self._state = state
        self._flow = flow
        self._index = socket.if_nametoindex(DEVICE)
        self._settings = config.settings(
            config.Options(
                device=DEVICE,
                rate="400mbit",
                takeover=True,
                state_dir=str(state),
                socket=str(state / "control.sock"),
            )
        )
        self._original = self._shown()

    async def live(self, netlink: Netlink, store: StateStore) -> None:
        """A whole life: apply, be ready, put back."""
        stop = asyncio.Event()
        stop.set()
        orders = Orders(stop, asyncio.Event(), lambda: self._settings, Notifier({}))
        confirmation = Confirmation(None)
        await keep(netlink, store, self._settings, confirmation, orders, ready=lambda _, __: None)

    async def change(self, netlink: Netlink, store: StateStore) -> None:
        """A reload that takes bands away and changes rates, amid a life that began well."""
        site = await survey(netlink, self._settings)
        keeper = Keeper(netlink, store, site, takeover=True)
        with keeper.holding():
            await keeper.begin()
            await keeper.adopt(
                replace(self._settings, table=BandTable((41, 9)), rate=parse_rate("300mbit"))
            )
            await keeper.end()

    async def restore(self, netlink: Netlink, store: StateStore) -> None:
        """`p3-agent restore`."""
        await put_back(netlink, store, self._settings)

    async def start_again(self, netlink: Netlink, store: StateStore) -> None:
        """A life that looks at what it has made."""
        site = await survey(netlink, self._settings)
        keeper = Keeper(netlink, store, site, takeover=True)
        with keeper.holding():
            await keeper.begin()
            assert await netlink.observe(site.link.index) == site.wanted
            self.check_flow()
            await keeper.end()

    def die_after_each_step(self, work: Work, mend: Work, prepare: int = 0) -> int:
        """Kill `work` after its first step, its second, …, and `mend` each time; how often.

        With `prepare` it begins where a life was killed after so many steps.
        """
        for last in range(1, 1000):
            if prepare:
                assert self._dies(self.live, prepare)
            is_dead = self._dies(work, last)
            if is_dead:
                self.check_flow()
                assert not self._dies(mend, 0)
            self.check_flow()
            assert self._shown() == self._original, f"after step {last}"
            assert list(self._state.glob("*.[jt]*")) == [], f"after step {last}"
            if not is_dead:
                return last - 1
        raise AssertionError("it took no end")

    def check_flow(self) -> None:
        """The connection still carries data, there and back."""
        self._flow.sendall(CHUNK)
        missing = len(CHUNK)
        while missing:
            missing -= len(self._flow.recv(missing)) or missing + 1
            assert missing >= 0, "the connection was lost"

    def _dies(self, work: Work, last: int) -> bool:
        """Whether `work` is killed after step `last` in a child, or else ends well."""
        child = os.fork()
        if not child:
            asyncio.run(self._work(work, Steps(last)))
            os._exit(0)  # an error ends the child as it would end the parent
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status in (0, -signal.SIGKILL), "see above"
        return status != 0

    async def _work(self, work: Work, steps: Steps) -> None:
        control = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with control:
            async with MortalChannel.to(None) as channel:
                channel.steps = steps
                await work(Netlink(channel, control, None), MortalStore(self._state, steps))

    def _shown(self) -> Raw:
        return asyncio.run(raw(None, self._index))


def main(state: str, address: str, port: str, *tree: str) -> None:
    """Every trial on one tree."""
    subprocess.run(["tc", "-batch", "-"], input="\n".join(tree), text=True, check=True)
    with socket.create_connection((address, int(port)), timeout=20) as flow:
        trial = Trial(Path(state), flow)
        trial.check_flow()
        steps = trial.die_after_each_step(trial.live, trial.restore)
        deaths = steps + trial.die_after_each_step(trial.change, trial.start_again)
        for prepare in (steps // 4, steps - 2):  # amid applying, amid putting back
            deaths += trial.die_after_each_step(trial.restore, trial.start_again, prepare)
            deaths += trial.die_after_each_step(trial.start_again, trial.restore, prepare)
        print(deaths)


if __name__ == "__main__":
    main(*sys.argv[1:])
