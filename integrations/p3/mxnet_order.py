"""The order in which a gluon network uses its parameters, found by watching a forward pass."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import mxnet as mx

from p3.mxnet_engine import Array


class ForwardWatch:
    """Watches `net` until `close`: which blocks a forward pass calls, in order.

    A hybridized network's blocks are called once, when its graph is made: that is enough.
    """

    def __init__(self, net: mx.gluon.Block) -> None:
        self._called: dict[mx.gluon.Block, None] = {}
        self._hooks: list[mx.gluon.utils.HookHandle] = []
        net.apply(self._hook)

    def layers(self, values: Sequence[Array]) -> list[int | None]:
        """The place of each of `values` in forward order, None for what was not seen."""
        place: dict[int, int] = {}
        for layer, block in enumerate(self._called):
            for parameter in block.params.values():
                # Not initialised, it is not trained.
                for value in parameter._data or ():
                    place.setdefault(id(value), layer)
        return [place.get(id(value)) for value in values]

    def close(self) -> None:
        """Stop watching."""
        for hook in self._hooks:
            hook.detach()
        self._hooks.clear()

    def _hook(self, block: mx.gluon.Block) -> None:
        self._hooks.append(block.register_forward_pre_hook(self._enter))

    def _enter(self, block: mx.gluon.Block, _: object) -> None:
        self._called.setdefault(block)


_watches: weakref.WeakKeyDictionary[mx.gluon.Block, ForwardWatch] = weakref.WeakKeyDictionary()
"""gluon makes a store by its name and tells it nothing of networks: here they meet."""


def watch(net: mx.gluon.Block) -> None:
    """Have `dist_p3` learn in which order `net` uses its parameters.

    Call it after hybridize() and before the first forward pass.
    """
    if net not in _watches:
        _watches[net] = ForwardWatch(net)


def learned(values: Sequence[Array]) -> list[int] | None:
    """The layer of each value, as the watched networks used them; None if none was seen.

    What no watched pass used comes last.
    """
    found: list[int | None] = [None] * len(values)
    for watching in list(_watches.values()):
        seen = watching.layers(values)
        if any(layer is not None for layer in seen):
            watching.close()
            found = [new if old is None else old for old, new in zip(found, seen, strict=True)]
    used = sorted({layer for layer in found if layer is not None})
    if not used:
        return None
    rank = {layer: number for number, layer in enumerate(used)}
    return [len(used) if layer is None else rank[layer] for layer in found]
