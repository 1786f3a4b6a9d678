"""The kernel's side of trees: read, change, count, save, put back, watch.

async with open_netlink() as netlink:
    link = await netlink.link("eth0")
    await netlink.ensure(link.index, htb_tree(table, rate, link.limits))
"""

from __future__ import annotations

import errno
import socket
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from p3_shaper.actions import EGRESS_PARENT
from p3_shaper.channel import Channel, ChannelError
from p3_shaper.encode_u32 import decode_filter
from p3_shaper.errors import TcError, no_link, no_namespace, refused, refused_request
from p3_shaper.kinds import missing_kinds
from p3_shaper.link import Link, ethtool_speed, ethtool_tx_queues
from p3_shaper.linkmessage import link_named, link_numbered, link_of, make_link
from p3_shaper.namespace import socket_in
from p3_shaper.observe import Hook, filter_places, tree_of
from p3_shaper.operations import Operation
from p3_shaper.plan import plan, put_back
from p3_shaper.replay import check
from p3_shaper.routemessage import out_index, route_to
from p3_shaper.snapshot import Snapshot, SnapshotError
from p3_shaper.tcmessage import (
    TC_INGRESS,
    Counters,
    Object,
    Request,
    TcMessage,
    Verb,
    parse,
    question,
)
from p3_shaper.tree import AGENT_MAJOR, Tree
from p3_shaper.watch import Change, Watch

__all__ = [
    "Change",
    "Hook",
    "Netlink",
    "Snapshot",
    "SnapshotError",
    "TcError",
    "Watch",
    "open_netlink",
]


@asynccontextmanager
async def open_netlink(netns: str | None = None) -> AsyncIterator[Netlink]:
    """The traffic control of the network namespace `netns` (a name or a path; None: one's own).

    Raises TcError if it cannot be entered; nothing is created.
    """
    async with AsyncExitStack() as stack:
        try:
            control = stack.enter_context(socket_in(netns, socket.AF_INET, socket.SOCK_DGRAM))
            channel = await stack.enter_async_context(Channel.to(netns))
        except OSError as error:
            raise no_namespace(netns, error) from error
        yield Netlink(channel, control, netns)


class Netlink:
    """Traffic control in one network namespace. Made by `open_netlink`; for one event loop."""

    def __init__(self, channel: Channel, control: socket.socket, namespace: str | None) -> None:
        self._channel = channel
        self._control = control
        self._namespace = namespace
        self._known_kinds: set[str] = set()

    async def link(self, name: str) -> Link:
        """Facts of interface `name`; TcError with ENODEV if there is none."""
        try:
            body = await self._channel.link(link_named(name))
        except ChannelError as error:
            raise no_link(name, self._namespace, error) from error
        speed = ethtool_speed(self._control, name)
        return link_of(body, speed, ethtool_tx_queues(self._control, name))

    async def links(self) -> list[Link]:
        """Every interface, by index, without what only its driver knows (`speed`); TcError."""
        try:
            return [link_of(body) for body in await self._channel.links(link_numbered(0))]
        except ChannelError as error:
            raise refused("list the interfaces", error) from error

    async def link_toward(self, address: str) -> Link | None:
        """The interface by which packets to `address` would leave; None without a route. TcError.

        Its `speed` is None.
        """
        try:
            index = out_index(await self._channel.route(route_to(address)))
        except ChannelError as error:
            if error.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EACCES, errno.EINVAL):
                return None  # none at all, or one that forbids
            raise refused(f"look up the route to {address}", error) from error
        if index is None:
            return None
        try:
            return link_of(await self._channel.link(link_numbered(index)), None)
        except ChannelError as error:
            raise refused(f"read interface number {index}", error) from error

    async def add_link(self, name: str, kind: str) -> Link:
        """Make interface `name` of rtnetlink's `kind` (like "ifb"), up; TcError."""
        try:
            await self._channel.change_link(Verb.ADD, make_link(name, kind))
        except ChannelError as error:
            raise refused(f"make interface {name} of kind {kind}", error) from error
        return await self.link(name)

    async def remove_link(self, link: Link) -> None:
        """Delete a virtual interface, like one that `add_link` made; TcError."""
        try:
            await self._channel.change_link(Verb.DELETE, link_numbered(link.index))
        except ChannelError as error:
            raise refused(f"delete interface {link.name}", error) from error

    async def observe(self, index: int, hook: Hook = Hook.ROOT) -> Tree:
        """The tree of interface `index` as it is; TcError if it cannot be read.

        Foreign parts are in it too: `Tree.owner` says whose the root is, `Tree.other` holds what
        is not modelled, `Tree.messages` everything as the kernel said it.
        """
        queues = [
            message
            for kind in (Object.QDISC, Object.CLASS)
            for message, _ in await self._dump(kind, index)
            if hook.has(message)
        ]
        filters = [
            message
            for place in filter_places(queues)
            for message, _ in await self._dump(Object.FILTER, index, place)
        ]
        return tree_of([*queues, *filters])

    async def egress_filters(self, index: int) -> tuple[TcMessage, ...]:
        """Filters that see what leaves interface `index` before its root qdisc does; TcError."""
        return tuple(
            message for message, _ in await self._dump(Object.FILTER, index, EGRESS_PARENT)
        )

    async def missing(self, kinds: Iterable[str]) -> frozenset[str]:
        """Those of `kinds` (see `Tree.kinds`) that this kernel lacks."""
        unknown = set(kinds) - self._known_kinds
        missing = await missing_kinds(unknown)
        self._known_kinds |= unknown - missing
        return missing

    async def apply(self, index: int, operations: Sequence[Operation]) -> None:
        """Carry `operations` out in order; if one fails, those before it are undone, and TcError.

        A kind that the kernel lacks is refused before anything changes.
        """
        missing = await self.missing(_new_kinds(operations))
        if missing:
            raise TcError(
                f"this kernel lacks {', '.join(sorted(missing))}, and nothing was changed: load or "
                "install the module (linux-modules-extra), or choose a mode that does without",
                errno.EOPNOTSUPP,
            )
        sender = _Interface(self._channel, index)
        done: list[Operation] = []
        try:
            for operation in operations:
                await operation.apply(sender)
                done.append(operation)
        finally:
            if len(done) < len(operations):
                await self.undo(index, done)

    async def undo(self, index: int, operations: Sequence[Operation]) -> None:
        """Take back `operations`, the last first, all that can be; TcError if one cannot."""
        sender = _Interface(self._channel, index)
        failures: list[TcError] = []
        for operation in reversed(operations):
            try:
                await operation.undo(sender)
            except TcError as error:
                failures.append(error)
        if failures:
            raise TcError(
                f"{len(failures)} of {len(operations)} steps could not be taken back: "
                f"{'; '.join(map(str, failures))}",
                failures[0].errno,
            )

    async def ensure(self, index: int, wanted: Tree, *, takeover: bool = False) -> list[Operation]:
        """Make interface `index` carry `wanted` (see `plan`), and check that it does.

        Returns what was done: nothing if it did already. Raises PlanError, TcError.
        """
        operations = plan(wanted, await self.observe(index, _hook(wanted)), takeover=takeover)
        if not operations:
            return operations
        await self.apply(index, operations)
        left = plan(wanted, await self.observe(index, _hook(wanted)))
        if left:
            steps = "; ".join(operation.describe() for operation in left)
            raise TcError(f"the kernel took the tree but shows another: {steps}", errno.EPROTO)
        return operations

    async def statistics(self, index: int) -> dict[int, Counters]:
        """Counters by class id, and by handle for qdiscs; needs no privilege. TcError."""
        return {
            message.handle: counters
            for kind in (Object.QDISC, Object.CLASS)
            for message, counters in await self._dump(kind, index)
            if message.handle
        }

    async def snapshot(self, link: Link) -> Snapshot:
        """What is at the root of `link`, to be put back by `restore`.

        Raises ReplayError if it could not be put back (bpf filters), TcError if it cannot be read.
        """
        tree = await self.observe(link.index)
        check(tree.messages)
        return Snapshot(link.index, link.name, link.mac, tree.messages)

    async def restore(
        self, index: int, snapshot: Snapshot, *, major: int = AGENT_MAJOR
    ) -> list[Operation]:
        """Put back what `snapshot` holds in place of our root with `major`; nothing if it is there.

        Returns what was done. Raises PlanError if by now another's root is there, TcError.
        """
        operations = put_back(snapshot.messages, await self.observe(index), major)
        await self.apply(index, operations)
        return operations

    def watch(self, index: int, name: str = "") -> Watch:
        """Changes of interface `index` that were not made here; enter it with `async with`.

        With a `name`, it also tells of any link that has or takes that name.
        """
        return Watch(self._namespace, index, name, self._channel.port)

    async def _dump(
        self, kind: Object, index: int, parent: int = 0
    ) -> list[tuple[TcMessage, Counters]]:
        try:
            bodies = await self._channel.dump(kind, question(index, parent))
        except ChannelError as error:
            raise refused(f"list what interface number {index} has", error) from error
        parsed = [parse(kind, body) for body in bodies]
        return [(message, counters) for number, message, counters in parsed if number == index]


class _Interface:
    """Where operations are carried out."""

    def __init__(self, channel: Channel, index: int) -> None:
        self._channel = channel
        self._index = index

    async def send(self, request: Request) -> None:
        message = request.message
        try:
            await self._channel.change(request.verb, message.object, message.payload(self._index))
        except ChannelError as error:
            raise refused_request(request, error) from error


def _hook(tree: Tree) -> Hook:
    root = tree.root
    return Hook.INGRESS if root is not None and root.parent == TC_INGRESS else Hook.ROOT


def _new_kinds(operations: Iterable[Operation]) -> set[str]:
    """Kinds that `operations` make, redirects included."""
    made = [
        operation.request.message
        for operation in operations
        if operation.request.verb in (Verb.ADD, Verb.REPLACE)
    ]
    filters = [decode_filter(message) for message in made if message.object is Object.FILTER]
    redirects = {"mirred" for item in filters if item is not None and item.redirect}
    return {message.kind for message in made} | redirects
