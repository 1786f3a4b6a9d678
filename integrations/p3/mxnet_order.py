"""The order in which a gluon network uses its parameters, found by watching a forward pass."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence

import mxnet as mx

from p3.mxnet_engine import Array


class ForwardWatch:
    """Watches which blocks a forward pass of `net` calls, in order, until `settle`.

    A hybridized network's blocks are called once, when its graph is made: that is enough.
    """

    def __init__(self, net: mx.gluon.Block) -> None:
        self.net = net
        self._called: dict[mx.gluon.Block, None] = {}
        self._hooks: dict[mx.gluon.Block, mx.gluon.utils.HookHandle] = {}
        self._before_forward: list[Callable[[], None]] = []
        net.apply(self._hook)

    def layers(self, values: Sequence[Array]) -> list[int | None]:
        """The place of each of `values` in forward order, None for what was not seen."""
        place: dict[int, int] = {}
        layer = 0
        for block in self._called:
            # A whole graph in one block, whose parameters come in the graph's order.
            whole = isinstance(block, mx.gluon.SymbolBlock)
            for parameter in block.params.values():
                # Not initialised, it is not trained.
                for value in parameter._data or ():
                    place.setdefault(id(value), layer)
                layer += whole
            layer += 1
        return [place.get(id(value)) for value in values]

    def settle(self, before_forward: Callable[[], None]) -> None:
        """Watch only whatever is called first, and call `before_forward` before it."""
        self._before_forward.append(before_forward)
        first = next(iter(self._called))
        for block in self._hooks.keys() - {first}:
            self._hooks.pop(block).detach()

    def _hook(self, block: mx.gluon.Block) -> None:
        if block not in self._hooks:
            self._hooks[block] = block.register_forward_pre_hook(self._enter)

    def _enter(self, block: mx.gluon.Block, _: object) -> None:
        self._called.setdefault(block)
        for tell in self._before_forward:
            tell()


_watches: weakref.WeakSet[ForwardWatch] = weakref.WeakSet()
"""gluon makes a store by its name and tells it nothing of networks: here they meet.

A watch lives as long as its network, which has its hooks.
"""


def watch(net: mx.gluon.Block) -> None:
    """Have `dist_p3` learn in which order `net` uses its parameters.

    Call it after hybridize() and before the first forward pass. Again is harmless.
    """
    if all(watching.net is not net for watching in _watches):
        _watches.add(ForwardWatch(net))


def learned(values: Sequence[Array], before_forward: Callable[[], None]) -> list[int] | None:
    """The layer of each value, as the watched networks used them; None if none was seen.

    What no watched pass used comes last. `before_forward` is called before each later pass.
    """
    found: list[int | None] = [None] * len(values)
    for watching in list(_watches):
        seen = watching.layers(values)
        if any(layer is not None for layer in seen):
            watching.settle(before_forward)
            found = [new if old is None else old for old, new in zip(found, seen, strict=True)]
    used = sorted({layer for layer in found if layer is not None})
    if not used:
        return None
    rank = {layer: number for number, layer in enumerate(used)}
    return [len(used) if layer is None else rank[layer] for layer in found]
