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

    `ends` is true where they are the parameter's last.
    """

    parameter: int
    start: int
    numel: int
    ends: bool


@dataclass(frozen=True, slots=True)
class Slice:
    """What travels as one: one run of one parameter, or several whole small neighbours.

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
class SlicePlan:
    """Every slice of a model, in forward order; the same on every rank, or nothing may be sent."""

    parameters: tuple[Parameter, ...]
    slices: tuple[Slice, ...]
    world_size: int

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

    def digest(self) -> bytes:
        """32 bytes that agree exactly when two plans agree (SHA-256)."""
        text = "\n".join(map(repr, (self.world_size, *self.parameters, *self.slices)))
        return hashlib.sha256(text.encode()).digest()


def make_plan(
    parameters: Sequence[Parameter], world_size: int, slice_numel: int = DEFAULT_SLICE_NUMEL
) -> SlicePlan:
    """Cut `parameters` into slices of at most `slice_numel` elements and place them on servers.

    Parameters may come in any order; slices are in forward order. ValueError when `slice_numel`
    or `world_size` is below 1.
    """
    if slice_numel < 1:
        raise ValueError(f"slice_numel is {slice_numel}: a slice has at least 1 element")
    if world_size < 1:
        raise ValueError(f"world_size is {world_size}: there is at least 1 rank")
    cut = list(_cut(parameters, slice_numel))
    return SlicePlan(tuple(parameters), tuple(_place(cut, world_size)), world_size)


def _cut(parameters: Sequence[Parameter], slice_numel: int) -> Iterator[Slice]:
    order = sorted(range(len(parameters)), key=lambda number: parameters[number].layer)
    index = 0
    for group in _neighbours(order, parameters, max(1, slice_numel // PACK_SHARE)):
        first = parameters[group[0]]
        for segments in _segments(group, parameters, slice_numel):
            yield Slice(index, first.layer, first.dtype, first.itemsize, segments)
            index += 1


def _neighbours(
    order: Sequence[int], parameters: Sequence[Parameter], pack_numel: int
) -> Iterator[list[int]]:
    """Runs of neighbours in forward order, of one dtype, of at most `pack_numel` together."""
    group: list[int] = []
    room = 0
    for number in order:
        parameter = parameters[number]
        if parameter.numel == 0:
            continue
        if group and (parameter.dtype != parameters[group[0]].dtype or parameter.numel > room):
            yield group
            group = []
        if not group:
            room = pack_numel
        group.append(number)
        room -= parameter.numel
    if group:
        yield group


def _segments(
    group: Sequence[int], parameters: Sequence[Parameter], slice_numel: int
) -> Iterator[tuple[Segment, ...]]:
    if len(group) > 1 or parameters[group[0]].numel <= slice_numel:
        yield tuple(Segment(number, 0, parameters[number].numel, True) for number in group)
        return
    numel = parameters[group[0]].numel
    pieces = -(-numel // slice_numel)
    # Equal pieces: a full slice followed by a sliver would cost a message for the sliver.
    bounds = [numel * piece // pieces for piece in range(pieces + 1)]
    for start, end in pairwise(bounds):
        yield (Segment(group[0], start, end - start, end == numel),)


def _place(slices: Iterable[Slice], world_size: int) -> Iterator[Slice]:
    """Each slice to the server with the fewest bytes so far: even over the model, in turn."""
    load = [0] * world_size
    for piece in slices:
        server = load.index(min(load))
        load[server] += piece.payload_bytes
        yield replace(piece, server=server)
