"""Placement as MXNet's KVStore has it, for comparison. Pure: no I/O.

Paper section 4.2: a tensor below a million elements goes to one server whole, a larger one is
split evenly over all. Which server a whole one goes to is a hash of its number, as it is in
MXNet 1.x: uneven, as there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from p3.slicing import Parameter, Segment, Slice, SlicePlan, even_pieces
from p3.systems import KVSTORE_SPLIT_NUMEL

_HASH = 9973


def make_kvstore_plan(
    parameters: Sequence[Parameter],
    world_size: int,
    split_numel: int = KVSTORE_SPLIT_NUMEL,
    servers: Sequence[int] = (),
) -> SlicePlan:
    """A slice a tensor, or one a server from `split_numel` elements on; see `slicing.make_plan`.

    ValueError when `split_numel` or `world_size` is below 1.
    """
    if split_numel < 1 or world_size < 1:
        raise ValueError(f"split_numel {split_numel}, world_size {world_size}: both are 1 or more")
    serving = tuple(servers) or tuple(range(world_size))
    order = sorted(range(len(parameters)), key=lambda number: parameters[number].layer)
    placed = [
        (parameters[number], segment, server)
        for number in order
        for segment, server in _placed(number, parameters[number].numel, split_numel, serving)
    ]
    slices = tuple(
        Slice(index, parameter.layer, parameter.dtype, parameter.itemsize, (segment,), server)
        for index, (parameter, segment, server) in enumerate(placed)
    )
    return SlicePlan(tuple(parameters), slices, world_size, serving)


def _placed(
    number: int, numel: int, split_numel: int, servers: Sequence[int]
) -> Iterator[tuple[Segment, int]]:
    if numel >= split_numel:
        yield from zip(even_pieces(number, numel, min(len(servers), numel)), servers, strict=False)
    else:
        yield Segment(number, 0, numel, True), servers[number * _HASH % len(servers)]
