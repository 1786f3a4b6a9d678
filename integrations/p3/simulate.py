"""A discrete-event model of synchronous training: would P3 help, and by how much? Pure.

All nodes are alike, so one is simulated: its computation layer by layer, and its link, on which
its own share of everybody's traffic queues. A parameter server's messages are moved by one lane
for each other node: a server's link is shared by all who send to it, so that a slice alone moves
at rate / (N - 1), and only many slices, on many servers, fill a link. A ring has one lane. What
waits is served in the system's order and may be preempted between pieces of QUANTA-th of the
model, as the kernel does between packets.
"""

from __future__ import annotations

import heapq
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from p3.bounds import HEADER_OVERHEAD, communication_s, iteration_bound_s
from p3.profile import Profile
from p3.slicing import Parameter, make_plan
from p3.systems import (
    BUCKET_BYTES,
    FIRST_BUCKET_BYTES,
    KVSTORE_SPLIT_NUMEL,
    Collective,
    System,
)

QUANTA = 1000
ITERATIONS = 7
WARM_UP = 3
INCAST_GOODPUT = 0.66
"""What is left of a link when many senders overrun a switch port without control: measured on
four nodes, a parameter server at 750 Mbit/s with 256 KB ports against 4 MB ones."""
INCAST_BURST = 1_000_000
"""Bytes that each sender may have under way before loss holds it back; a smaller port loses."""


@dataclass(frozen=True, slots=True)
class Network:
    """`nodes` nodes whose links carry `bits_per_second` each way.

    `latency_s`: one message's way, with what software adds. `port_buffer`: bytes that a switch
    port holds. `rack` nodes share uplinks of 1 / `oversubscription` of their links' sum; a rack
    of 0 holds all. `straggler`: the slowest node's compute time over the others'.
    """

    nodes: int
    bits_per_second: float
    latency_s: float = 200e-6
    port_buffer: int = 256_000
    rack: int = 0
    oversubscription: float = 1.0
    straggler: float = 1.0

    def __post_init__(self) -> None:
        """ValueError for what cannot be."""
        if self.nodes < 1:
            raise ValueError(f"{self.nodes} nodes: there is at least 1")
        if self.bits_per_second <= 0:
            raise ValueError(f"{self.bits_per_second} bit/s: a link carries more than 0")
        if self.oversubscription < 1 or self.straggler < 1:
            raise ValueError("oversubscription and straggler are ratios of 1 or more")
        if min(self.latency_s, self.port_buffer, self.rack) < 0:
            raise ValueError("latency, port buffer and rack are not negative")

    def payload_rate(self, collective: Collective) -> float:
        """Bytes of payload a second that a node moves each way while all nodes do."""
        return self.link_bits_per_second(collective) / 8 / HEADER_OVERHEAD

    def link_bits_per_second(self, collective: Collective) -> float:
        """Bits a second that a node moves each way while all nodes do, headers included."""
        return self.bits_per_second * self._fabric_share(collective)

    def _fabric_share(self, collective: Collective) -> float:
        rack = self.rack
        if not 0 < rack < self.nodes:
            return 1.0
        if collective == "ring":
            # Only one node of a rack has its neighbour in the next.
            return min(1.0, rack / self.oversubscription)
        outside = (self.nodes - rack) / (self.nodes - 1)
        return min(1.0, 1 / self.oversubscription / outside)


@dataclass(frozen=True, slots=True)
class Prediction:
    """Seconds of an iteration, the bound that no synchronous system beats, the link's busy share.

    `wait_s` is how long an iteration's forward pass waits for parameters.
    """

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
    times = [after - before for before, after in pairwise(starts)]
    iteration = statistics.median(times)
    span = starts[-1] - starts[0]
    return Prediction(
        iteration_s=iteration,
        bound_s=bound_s(profile, network),
        busy=run.busy_since(WARM_UP) / span if span else 0.0,
        wait_s=max(0.0, iteration - _compute_scale(network, system) * profile.compute_s),
    )


def bound_s(profile: Profile, network: Network) -> float:
    """max(computation, bytes that must cross a link / its payload rate)."""
    communication = communication_s(
        profile.payload_bytes, network.nodes, network.link_bits_per_second("ring")
    )
    return iteration_bound_s(network.straggler * profile.compute_s, communication)


def _compute_scale(network: Network, system: System) -> float:
    """All wait for the slowest node; without synchrony only its own share is late."""
    if system.synchronous:
        return network.straggler
    return 1 + (network.straggler - 1) / network.nodes


@dataclass(frozen=True, slots=True)
class _Piece:
    """What travels as one: `numel` elements, complete with layer `trigger`'s gradient."""

    layers: tuple[int, ...]
    trigger: int
    numel: int


def _pieces(profile: Profile, system: System, nodes: int) -> list[_Piece]:
    if system.cut == "buckets":
        return list(_buckets(profile))
    if system.cut == "slices":
        return list(_slices(profile, system.slice_numel, nodes))
    return list(_tensors(profile, nodes))


def _slices(profile: Profile, slice_numel: int, nodes: int) -> Iterator[_Piece]:
    """As the engines cut them, neighbours that share one included."""
    parameters = [
        Parameter(f"{layer.name}.{place}", numel, "", profile.itemsize, number)
        for number, layer in enumerate(profile.layers)
        for place, numel in enumerate(layer.numels)
    ]
    for piece in make_plan(parameters, nodes, slice_numel).slices:
        layers = {parameters[segment.parameter].layer for segment in piece.segments}
        yield _Piece(tuple(sorted(layers)), piece.layer, piece.numel)


def _tensors(profile: Profile, nodes: int) -> Iterator[_Piece]:
    """MXNet's KVStore: whole, or large ones in a piece a server."""
    for number, layer in enumerate(profile.layers):
        for numel in filter(None, layer.numels):
            count = nodes if numel >= KVSTORE_SPLIT_NUMEL else 1
            yield from [_Piece((number,), number, -(-numel // count))] * count


def _buckets(profile: Profile) -> Iterator[_Piece]:
    """DDP's: whole tensors from the last on, until a bucket is full."""
    layers: list[int] = []
    numel = 0
    limit = FIRST_BUCKET_BYTES
    for number in reversed(range(len(profile.layers))):
        for tensor in reversed(profile.layers[number].numels):
            layers.append(number)
            numel += tensor
            if numel * profile.itemsize >= limit:
                yield _Piece(tuple(sorted(set(layers))), number, numel)
                layers, numel, limit = [], 0, BUCKET_BYTES
    if layers:
        yield _Piece(tuple(sorted(set(layers))), layers[-1], numel)


@dataclass(order=True, slots=True)
class _Job:
    """Bytes that wait for a lane."""

    key: tuple[int, ...]
    seconds: float = field(compare=False)
    then: Callable[[], None] = field(compare=False)


class _Clock:
    """Callbacks in order of time."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def after(self, seconds: float, then: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.now + seconds, self._count, then))

    def step(self) -> bool:
        """Run the next callback; False when there is none."""
        if not self._events:
            return False
        self.now, _, then = heapq.heappop(self._events)
        then()
        return True


class _Link:
    """Lanes that serve jobs in order of their keys, a quantum of seconds at a time."""

    def __init__(self, clock: _Clock, lanes: int, quantum_s: float) -> None:
        self._clock = clock
        self._lanes = lanes
        self._free = lanes
        self._quantum_s = quantum_s
        self._waiting: list[_Job] = []
        self.busy_s = 0.0

    def add(self, job: _Job) -> None:
        heapq.heappush(self._waiting, job)
        self._serve()

    def _serve(self) -> None:
        while self._free and self._waiting:
            self._free -= 1
            job = heapq.heappop(self._waiting)
            part = min(job.seconds, self._quantum_s)
            job.seconds -= part
            self.busy_s += part / self._lanes
            self._clock.after(part, lambda job=job: self._served(job))  # type: ignore[misc]

    def _served(self, job: _Job) -> None:
        self._free += 1
        if job.seconds > 0:
            heapq.heappush(self._waiting, job)
        else:
            job.then()
        self._serve()


class _Run:
    """One node through ITERATIONS iterations."""

    def __init__(self, profile: Profile, network: Network, system: System) -> None:
        scale = _compute_scale(network, system)
        self._forward_s = [scale * layer.forward_s for layer in profile.layers]
        self._backward_s = [scale * layer.backward_s for layer in profile.layers]
        self._system = system
        self._way = _Way(profile, network, system)
        self._clock = _Clock()
        self._link = _Link(self._clock, self._way.lanes, self._way.quantum_s)
        self._pieces = _pieces(profile, system, network.nodes) if network.nodes > 1 else []
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
            self._busy_at.append(self._link.busy_s)
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
        piece = self._pieces[index]
        then = self._summed if self._system.collective == "ring" else self._at_server
        self._send(piece, iteration, lambda: then(index, iteration))

    def _send(self, piece: _Piece, iteration: int, then: Callable[[], None]) -> None:
        self._arrivals += 1
        key = {
            "fifo": (self._arrivals,),
            "layer": (piece.trigger, self._arrivals),
            "iteration": (iteration, piece.trigger, self._arrivals),
        }[self._system.order]
        delay = self._way.delay_s
        arrived: Callable[[], None] = lambda: self._clock.after(delay, then)  # noqa: E731
        self._link.add(_Job(key, self._way.lane_s(piece.numel), arrived))

    def _at_server(self, index: int, iteration: int) -> None:
        """All ranks' contributions are in: the server answers."""
        layer = self._pieces[index].trigger
        if not self._system.pull:
            self._answer(index, iteration)
            return
        self._pushed[layer] -= 1
        if not self._pushed[layer]:
            self._pushed[layer] = self._members[layer]
            # The server notifies, and the worker asks.
            self._clock.after(2 * self._way.delay_s, lambda: self._pull(layer, iteration))

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
    """How long a piece takes: seconds on a lane, and the delay behind it."""

    def __init__(self, profile: Profile, network: Network, system: System) -> None:
        nodes = network.nodes
        others = max(1, nodes - 1)
        rate = network.payload_rate(system.collective)
        ring = system.collective == "ring"
        senders_may_burst = network.port_buffer < others * INCAST_BURST
        if not ring and not system.incast_control and senders_may_burst:
            rate *= INCAST_GOODPUT
        self.lanes = 1 if ring else others
        share = (nodes - 1) / nodes * (2 if ring else 1)
        self._s_an_element = profile.itemsize * share * self.lanes / rate
        messages = 2 * others if ring else self.lanes
        self._message_s = messages * system.message_s
        self.delay_s = network.latency_s * (2 * others if ring else 1)
        self.quantum_s = max(profile.numel / QUANTA * self._s_an_element, 1e-9)

    def lane_s(self, numel: int) -> float:
        """Seconds that one lane is taken by a piece of `numel` elements."""
        return numel * self._s_an_element + self._message_s
