"""Parameters → slices → servers. Pure: no I/O, no torch.

Paper section 4.2 cuts every parameter into slices of at most 50,000 elements and deals them to
the servers in turn, restarting at server 0 for each tensor. Two things differ here: small
neighbours share a slice (a batch norm's 64 weights are not worth a message of their own), and
slices are dealt over the whole model by bytes, so that servers stay even.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

DEFAULT_SLICE_NUMEL = 50_000
"""Paper section 5.7 (figure 12): the best of 5k … 1M on all models measured."""

PACK_SHARE = 2
"""Neighbours share a slice up to half its size: more would hold the first of them up."""

FIRST_NUMEL = 1_000
"""Neighbours share the first slice up to this size, and later ones up to what is before them:
nothing hides the first one's way, and the layers before a slice hide more of its the more there
are."""

TAIL_SHARE = 8
"""A large run takes small neighbours along up to an eighth of its size: a bias is not worth a
message of its own."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One trained tensor: `layer` is its place in forward order, `itemsize` bytes an element."""

    name: str
    numel: int
    dtype: str
    itemsize: int
    layer: int


@dataclass(frozen=True, slots=True)
class Segment:
    """Elements `start` … `start + numel` of parameter number `parameter`, flattened.

    `ends` is true where they are the parameter's last, or it has none.
    """

    parameter: int
    start: int
    numel: int
    ends: bool


@dataclass(frozen=True, slots=True)
class Slice:
    """What travels as one: a run of one parameter, and small whole neighbours that follow it.

    `layer` is the forward order of its most urgent segment. The payload holds the segments'
    elements one after the other, then a presence flag for each parameter that ends here: 1
    where this rank had a gradient, 0 where not, so that the sum tells how many ranks had one.
    Payloads laid out in slice order leave every parameter's elements contiguous.
    """

    index: int
    layer: int
    dtype: str
    itemsize: int
    segments: tuple[Segment, ...]
    server: int = 0

    @property
    def numel(self) -> int:
        """Gradient elements."""
        return sum(segment.numel for segment in self.segments)

    @property
    def payload_numel(self) -> int:
        """Elements that travel: gradient and flags."""
        return self.numel + sum(segment.ends for segment in self.segments)

    @property
    def payload_bytes(self) -> int:
        """Bytes that travel, without headers."""
        return self.payload_numel * self.itemsize


@dataclass(frozen=True, slots=True)
class Layout:
    """Where payloads lie in memory: slices one after the other in a flat array a dtype.

    `totals[dtype]` counts an array's elements. Slice i's payload begins at `slices[i]`, and
    parameter p's elements, none of another between them, at `parameters[p]` of its dtype's array.
    """

    totals: dict[str, int]
    slices: tuple[int, ...]
    parameters: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SlicePlan:
    """Every slice of a model, in forward order; the same on every rank, or nothing may be sent.

    Ranks 0 … `world_size` - 1 are the workers. `servers` may be some of them, or ranks from
    `world_size` on that only serve.
    """

    parameters: tuple[Parameter, ...]
    slices: tuple[Slice, ...]
    world_size: int
    servers: tuple[int, ...]

    @property
    def members(self) -> int:
        """Workers, and servers that do not work."""
        return max(self.world_size, 1 + max(self.servers, default=0))

    def sends(self, member: int, other: int) -> bool:
        """Whether payloads go from `member` to `other`: one works and the other serves."""
        works, serves = member < self.world_size, member in self.servers
        return (works and other in self.servers) or (serves and other < self.world_size)

    @property
    def layers(self) -> int:
        """How many places in forward order there are."""
        return 1 + max((parameter.layer for parameter in self.parameters), default=-1)

    def layer_bytes(self) -> tuple[int, ...]:
        """Payload bytes by layer, in forward order."""
        totals = [0] * self.layers
        for piece in self.slices:
            totals[piece.layer] += piece.payload_bytes
        return tuple(totals)

    def slices_of(self) -> tuple[tuple[int, ...], ...]:
        """For every parameter, the indices of the slices that hold a part of it."""
        found: list[list[int]] = [[] for _ in self.parameters]
        for piece in self.slices:
            for segment in piece.segments:
                found[segment.parameter].append(piece.index)
        return tuple(tuple(indices) for indices in found)

    def layout(self) -> Layout:
        """How the payloads of this plan lie in memory."""
        totals = {parameter.dtype: 0 for parameter in self.parameters}
        slices: list[int] = []
        parameters = [0] * len(self.parameters)
        for piece in self.slices:
            slices.append(at := totals[piece.dtype])
            totals[piece.dtype] += piece.payload_numel
            for segment in piece.segments:
                parameters[segment.parameter] = at - segment.start
                at += segment.numel
        return Layout(totals, tuple(slices), tuple(parameters))

    def digest(self) -> bytes:
        """32 bytes that agree exactly when two plans agree (SHA-256)."""
        text = "\n".join(map(repr, (self.world_size, self.servers, *self.parameters, *self.slices)))
        return hashlib.sha256(text.encode()).digest()


def make_plan(
    parameters: Sequence[Parameter],
    world_size: int,
    slice_numel: int = DEFAULT_SLICE_NUMEL,
    servers: Sequence[int] = (),
    *,
    pack: bool = True,
) -> SlicePlan:
    """Cut `parameters` into slices of at most `slice_numel` elements and place them on servers.

    Parameters may come in any order; slices are in forward order. Every worker serves unless
    `servers` names who does. Without `pack` no two parameters share a slice. ValueError when
    `slice_numel` or `world_size` is below 1.
    """
    if slice_numel < 1:
        raise ValueError(f"slice_numel is {slice_numel}: a slice has at least 1 element")
    if world_size < 1:
        raise ValueError(f"world_size is {world_size}: there is at least 1 rank")
    serving = tuple(servers) or tuple(range(world_size))
    placed = _place(_cut(parameters, slice_numel, pack), serving)
    return SlicePlan(tuple(parameters), tuple(placed), world_size, serving)


def _cut(parameters: Sequence[Parameter], slice_numel: int, pack: bool) -> Iterator[Slice]:
    order = sorted(range(len(parameters)), key=lambda number: parameters[number].layer)
    for index, segments in enumerate(_runs(order, parameters, slice_numel, pack)):
        first = parameters[segments[0].parameter]
        yield Slice(index, first.layer, first.dtype, first.itemsize, segments)


def _runs(
    order: Sequence[int], parameters: Sequence[Parameter], slice_numel: int, pack: bool
) -> Iterator[tuple[Segment, ...]]:
    """What each slice holds, in forward order."""
    run: list[Segment] = []
    room = 0
    before = 0  # elements in earlier slices
    for number in order:
        parameter = parameters[number]
        # Without elements there is still a flag.
        count = max(1, -(-parameter.numel // slice_numel))
        pieces = even_pieces(number, parameter.numel, count)
        if (
            not run
            or parameter.numel > room
            or parameter.dtype != parameters[run[0].parameter].dtype
        ):
            for complete in (run, *([piece] for piece in pieces[:-1])):
                if complete:
                    before += sum(segment.numel for segment in complete)
                    yield tuple(complete)
            run = []
            room = _room(pieces[-1].numel, before, slice_numel) if pack else 0
        else:
            room -= parameter.numel
        run.append(pieces[-1])
    if run:
        yield tuple(run)


def even_pieces(number: int, numel: int, count: int) -> list[Segment]:
    """Parameter `number`, of `numel` elements, in `count` pieces."""
    # Equal pieces: a full slice followed by a sliver would cost a message for the sliver.
    bounds = [numel * piece // count for piece in range(count + 1)]
    return [Segment(number, start, end - start, end == numel) for start, end in pairwise(bounds)]


def _room(numel: int, before: int, slice_numel: int) -> int:
    """How many elements of later neighbours may join a slice that begins with `numel`."""
    shared = min(max(before, FIRST_NUMEL), slice_numel // PACK_SHARE)
    return max(shared - numel, min(slice_numel - numel, numel // TAIL_SHARE), 0)


def _place(slices: Iterable[Slice], servers: Sequence[int]) -> Iterator[Slice]:
    """Each slice to the server with the fewest bytes so far: even over the model, in turn."""
    load = dict.fromkeys(servers, 0)
    for piece in slices:
        server = min(load, key=load.__getitem__)
        load[server] += piece.payload_bytes
        yield replace(piece, server=server)
