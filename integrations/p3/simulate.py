"""A discrete-event model of training: would P3 help, and by how much? Pure.

All nodes are alike, so one is simulated: its computation layer by layer, and its link, on which
its own share of everybody's traffic queues. A server's link is shared by all who send to it, so
that a slice alone moves at rate / (N - 1), and only many slices, on many servers, fill a link. A
ring uses the whole link for one slice. What is more urgent preempts, as the kernel does between
packets; bands without agents share the link, each in its own order.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

from p3.band_queue import BandQueue
from p3.profile import Profile
from p3.schedule import Schedule, link_order
from p3.simulation.link import Clock, Job
from p3.simulation.network import Network
from p3.simulation.pieces import Piece, cut, schedule_of
from p3.systems import DIRECT_BYTES, System, with_buckets

ITERATIONS = 7
WARM_UP = 3
BANDS = 7
"""As many as the band table has unless its user says otherwise."""
STANDING_BYTES = 450_000
"""What waits in sockets, queues and ports before each message where bands share the link: fitted
to four nodes' iterations with the engine `groups` and no agents (docs/performance.md)."""
BUCKETS = tuple(2**20 * mebibytes for mebibytes in (1, 2, 5, 10, 25, 50, 100, 200))
"""Sizes that are tried for DDP's best, in bytes."""
SLICE_FACTORS = (1, 4, 16, 64)
"""Of an engine's slice size, tried for the best: a ring of many nodes wants larger ones."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """Seconds of an iteration, the bound that no synchronous system beats, the link's busy share.

    `wait_s` is how long an iteration's forward pass waits for parameters.
    """

    system: System
    iteration_s: float
    bound_s: float
    busy: float
    wait_s: float

    @property
    def share_of_bound(self) -> float:
        """1 for perfect overlap."""
        return self.bound_s / self.iteration_s


def predict(profile: Profile, network: Network, system: System) -> Prediction:
    """Iteration time of `profile` on `network` with `system`, in steady state."""
    run = _Run(profile, network, system)
    run.to_end()
    starts = run.starts[WARM_UP:]
    iteration = statistics.median(after - before for before, after in pairwise(starts))
    span = starts[-1] - starts[0]
    return Prediction(
        system,
        iteration_s=iteration,
        bound_s=network.bound_s(profile),
        busy=run.busy_since(WARM_UP) / span if span else 0.0,
        wait_s=max(0.0, iteration - network.compute_scale(system) * profile.compute_s),
    )


def with_best_buckets(
    profile: Profile, network: Network, system: System, sizes: Iterable[int] = BUCKETS
) -> Prediction:
    """DDP with the bucket size of `sizes` that is best for it."""
    told = [predict(profile, network, with_buckets(system, size)) for size in sizes]
    return min(told, key=lambda one: one.iteration_s)


def with_best_slices(
    profile: Profile, network: Network, system: System, factors: Iterable[int] = SLICE_FACTORS
) -> Prediction:
    """P3 with the slice size that is best for it: its own, or one of `factors` times that."""
    sizes = (system.slice_numel * factor for factor in factors)
    told = [predict(profile, network, replace(system, slice_numel=size)) for size in sizes]
    return min(told, key=lambda one: one.iteration_s)


def _keeps_order(system: System) -> bool:
    """Whether ranks issue a band's slices in an order agreed beforehand."""
    return system.collective == "ring" and system.order == "iteration"


def _queues(pieces: Sequence[Piece], schedule: Schedule) -> tuple[BandQueue, ...]:
    orders: list[list[int]] = [[] for _ in range(schedule.bands)]
    for index in link_order([(piece.trigger, piece.numel) for piece in pieces], schedule):
        orders[schedule.push_band(pieces[index].trigger)].append(index)
    return tuple(map(BandQueue, orders))


class _Run:
    """One node through ITERATIONS iterations."""

    def __init__(self, profile: Profile, network: Network, system: System) -> None:
        scale = network.compute_scale(system)
        self._forward_s = [scale * layer.forward_s for layer in profile.layers]
        self._backward_s = [scale * layer.backward_s for layer in profile.layers]
        self._system = system
        self._way = _Way(profile, network, system)
        self._clock = Clock()
        self._schedule = schedule_of(profile, system, BANDS)
        self._pieces = cut(profile, system, network.nodes) if network.nodes > 1 else []
        self._queues = _queues(self._pieces, self._schedule) if _keeps_order(system) else ()
        layers = len(profile.layers)
        self._triggered: list[list[int]] = [[] for _ in range(layers)]
        self._members = [0] * layers
        for index, piece in enumerate(self._pieces):
            self._triggered[piece.trigger].append(index)
            for layer in piece.layers:
                self._members[layer] += 1
        self._left = list(self._members)
        self._pushed = list(self._members)
        self._applied = [0] * layers
        self._iteration = 0
        self._waiting: int | None = None
        self._arrivals = 0
        self._busy_at: list[float] = []
        self.starts: list[float] = []

    def to_end(self) -> None:
        """Simulate until the last iteration has begun."""
        self._enter(0)
        while len(self.starts) < ITERATIONS and self._clock.step():
            pass

    def busy_since(self, iteration: int) -> float:
        """Seconds for which the link was busy from the start of `iteration` on."""
        return self._busy_at[-1] - self._busy_at[iteration]

    # -- computation ----------------------------------------------------------------------

    def _enter(self, layer: int) -> None:
        """The forward pass comes to `layer`."""
        if not self._ready(layer):
            self._waiting = layer
            return
        self._waiting = None
        if layer == 0:
            self.starts.append(self._clock.now)
            self._busy_at.append(self._clock.busy_s)
        self._clock.after(self._forward_s[layer], lambda: self._forward_done(layer))

    def _ready(self, layer: int) -> bool:
        needed = [layer] if self._system.per_layer else range(len(self._applied))
        return all(not self._members[n] or self._applied[n] >= self._iteration for n in needed)

    def _forward_done(self, layer: int) -> None:
        if layer + 1 < len(self._applied):
            self._enter(layer + 1)
        else:
            self._go_back(layer)

    def _go_back(self, layer: int) -> None:
        self._clock.after(self._backward_s[layer], lambda: self._backward_done(layer))

    def _backward_done(self, layer: int) -> None:
        iteration = self._iteration
        if layer == 0:
            self._iteration += 1
        for index in self._triggered[layer]:
            self._push(index, iteration)
        if layer:
            self._go_back(layer - 1)
        else:
            self._enter(0)

    # -- communication --------------------------------------------------------------------

    def _push(self, index: int, iteration: int) -> None:
        if self._system.collective == "server":
            self._send(self._pieces[index], iteration, partial(self._at_server, index, iteration))
            return
        band = self._schedule.push_band(self._pieces[index].trigger)
        issued = self._queues[band].add(index, iteration) if self._queues else [index]
        for ready in issued:
            self._send(self._pieces[ready], iteration, partial(self._summed, ready, iteration))

    def _send(self, piece: Piece, iteration: int, then: Callable[[], None]) -> None:
        self._arrivals += 1
        key: tuple[int, ...] = (self._arrivals,)
        if not self._queues and self._system.order == "layer":
            key = (piece.trigger, self._arrivals)
        elif not self._queues and self._system.order == "iteration":
            key = (iteration, piece.trigger, self._arrivals)
        band = self._schedule.push_band(piece.trigger)
        if self._system.order == "iteration" and piece.trigger == self._waiting:
            band = 0
        flow, band = (band, 0) if self._system.shares_link else (0, band)
        work, share = self._way.work_s(piece), self._way.share(piece)

        def left() -> None:
            queues = self._system.shares_link and not self._clock.is_idle
            self._clock.after(self._way.delay_s(piece, queues=queues), then)

        self._clock.send(Job(flow, key, work, share, left, band))

    def _at_server(self, index: int, iteration: int) -> None:
        """All ranks' contributions are in: the server answers."""
        piece = self._pieces[index]
        if not self._system.pull:
            self._answer(index, iteration)
            return
        self._pushed[piece.trigger] -= 1
        if not self._pushed[piece.trigger]:
            self._pushed[piece.trigger] = self._members[piece.trigger]
            # The server notifies, and the worker asks.
            asking = 2 * self._way.delay_s(piece)
            self._clock.after(asking, lambda: self._pull(piece.trigger, iteration))

    def _pull(self, layer: int, iteration: int) -> None:
        for index in self._triggered[layer]:
            self._answer(index, iteration)

    def _answer(self, index: int, iteration: int) -> None:
        self._send(self._pieces[index], iteration, lambda: self._summed(index, iteration))

    def _summed(self, index: int, iteration: int) -> None:
        for layer in self._pieces[index].layers:
            self._left[layer] -= 1
            if not self._left[layer]:
                self._left[layer] = self._members[layer]
                self._applied[layer] = iteration + 1
        if self._waiting is not None:
            self._enter(self._waiting)


class _Way:
    """How long pieces take on the link and behind it."""

    def __init__(self, profile: Profile, network: Network, system: System) -> None:
        self._others = max(1, network.nodes - 1)
        self._is_ring = system.collective == "ring"
        self._sums_directly = self._is_ring and system.cut == "slices"
        self._latency_s = network.latency_s
        self._message_s = system.message_s
        self._itemsize = profile.itemsize
        self._queue_s = STANDING_BYTES * 8 / network.bits_per_second
        rounds = 2 if self._is_ring else 1
        crossing = rounds * (network.nodes - 1) / network.nodes
        self._s_an_element = profile.itemsize * crossing / network.payload_rate(system)

    def work_s(self, piece: Piece) -> float:
        """Seconds of the whole link; the processor's, for the messages, if those are more."""
        messages = piece.count * self._steps(piece)
        return max(piece.numel * self._s_an_element, messages * self._message_s)

    def share(self, piece: Piece) -> float:
        """The part of the link that a piece can use."""
        return 1.0 if self._is_ring else min(1.0, piece.count / self._others)

    def delay_s(self, piece: Piece, *, queues: bool = False) -> float:
        """Seconds between the last byte's leaving and its use, behind other bytes or not."""
        each = self._latency_s + self._queue_s if queues else self._latency_s
        return each * self._steps(piece)

    def _steps(self, piece: Piece) -> int:
        """Messages one after the other."""
        if not self._is_ring or self._is_direct(piece):
            return 1
        return 2 * self._others

    def _is_direct(self, piece: Piece) -> bool:
        size = piece.numel * self._itemsize
        return self._sums_directly and self._others * size <= DIRECT_BYTES
