"""What travels as one in a discrete-event model: slices, KVStore's tensors, or DDP's buckets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from p3.profile import Profile
from p3.schedule import Schedule, make_schedule
from p3.slicing import Parameter, make_plan
from p3.systems import KVSTORE_SPLIT_NUMEL, System

GRAINS = 256
"""Slices of one layer are simulated together up to a model's 256th: they come and go together."""


@dataclass(frozen=True, slots=True)
class Piece:
    """`numel` elements in `count` messages, complete with layer `trigger`'s gradient."""

    layers: tuple[int, ...]
    trigger: int
    numel: int
    count: int = 1


def cut(profile: Profile, system: System, nodes: int) -> list[Piece]:
    """What `system` sends of `profile` in an iteration on `nodes` nodes, in no certain order."""
    if system.cut == "buckets":
        return list(_buckets(profile, system))
    if system.cut == "slices":
        return list(_together(_slices(profile, system.slice_numel, nodes), profile.numel))
    return list(_tensors(profile, nodes))


def schedule_of(profile: Profile, system: System, bands: int) -> Schedule:
    """The bands that `system` gives the model's layers."""
    starts = [0.0]
    for layer in profile.layers[:-1]:
        starts.append(starts[-1] + layer.forward_s)
    layer_bytes = [layer.numel * profile.itemsize for layer in profile.layers]
    return make_schedule(layer_bytes, bands, starts, system.order, system.cutting)


def _slices(profile: Profile, slice_numel: int, nodes: int) -> Iterator[Piece]:
    """As the engines cut them, neighbours that share one included."""
    parameters = [
        Parameter(f"{layer.name}.{place}", numel, "", profile.itemsize, number)
        for number, layer in enumerate(profile.layers)
        for place, numel in enumerate(layer.numels)
    ]
    for piece in make_plan(parameters, nodes, slice_numel).slices:
        layers = {parameters[segment.parameter].layer for segment in piece.segments}
        yield Piece(tuple(sorted(layers)), piece.layer, piece.numel)


def _together(pieces: Iterable[Piece], numel: int) -> Iterator[Piece]:
    """Neighbours of the same layers as one, up to a grain."""
    last: Piece | None = None
    for piece in pieces:
        if last is not None and last.layers == piece.layers:
            both = last.numel + piece.numel
            if both * GRAINS <= numel:
                last = replace(last, numel=both, count=last.count + piece.count)
                continue
        if last is not None:
            yield last
        last = piece
    if last is not None:
        yield last


def _tensors(profile: Profile, nodes: int) -> Iterator[Piece]:
    """MXNet's KVStore: whole to one server, or large ones in a message a server."""
    for number, layer in enumerate(profile.layers):
        for numel in filter(None, layer.numels):
            yield Piece((number,), number, numel, nodes if numel >= KVSTORE_SPLIT_NUMEL else 1)


def _buckets(profile: Profile, system: System) -> Iterator[Piece]:
    """DDP's: whole tensors from the last on, until a bucket is full."""
    layers: list[int] = []
    numel = 0
    limit = system.first_bucket_bytes
    for number in reversed(range(len(profile.layers))):
        for tensor in reversed(profile.layers[number].numels):
            layers.append(number)
            numel += tensor
            if numel * profile.itemsize >= limit:
                yield Piece(tuple(sorted(set(layers))), number, numel)
                layers, numel, limit = [], 0, system.bucket_bytes
    if layers:
        yield Piece(tuple(sorted(set(layers))), layers[-1], numel)
