"""How fast an iteration could be: a bound that no synchronous system beats. Pure."""

from __future__ import annotations

HEADER_OVERHEAD = 1514 / 1448
"""Bytes on an Ethernet link for each byte of TCP payload: MTU 1500, time stamps on."""


def communication_s(payload_bytes: int, nodes: int, bits_per_second: float) -> float:
    """Least seconds to sum `payload_bytes` over `nodes` whose links carry `bits_per_second`.

    Every node must send, and receive, 2 (N - 1) / N of its bytes: all but its share of the sums
    on the way in, and its share of the results to the others. ValueError for fewer than 1 node
    or a rate below 1.
    """
    if nodes < 1:
        raise ValueError(f"{nodes} nodes: there is at least 1")
    if bits_per_second < 1:
        raise ValueError(f"{bits_per_second} bit/s: a link carries at least 1")
    return 2 * (nodes - 1) / nodes * payload_bytes * 8 * HEADER_OVERHEAD / bits_per_second


def iteration_bound_s(compute_s: float, communication_s: float) -> float:
    """Seconds of an iteration in which one of the two overlaps with the other completely."""
    return max(compute_s, communication_s)
