"""Requests that are nearly right, for the fuzz tests: hypothesis chooses, a seed multiplies."""

import json
import random
from collections.abc import Callable, Iterator

from hypothesis import strategies as st

from p3_agent.messages import (
    MAX_REQUEST,
    Confirm,
    GetBands,
    GetStatus,
    Hello,
    Reconcile,
    RegisterJob,
    SetRate,
    encode,
)

WHOLE = tuple(
    map(
        encode,
        (
            Hello(),
            GetBands(),
            GetStatus(),
            Reconcile(),
            SetRate("200mbit"),
            Confirm(),
            RegisterJob("vgg"),
        ),
    )
)
TAGS = [str(json.loads(request)["type"]) for request in WHOLE]

_LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=50)
_JSON = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=10,
)
_TAGGED = st.fixed_dictionaries(
    {"type": st.sampled_from([*TAGS, "done", "x"])},
    optional=dict.fromkeys(("protocol", "rate", "name", "x"), _JSON),
)
_SEEDS = (
    st.sampled_from(WHOLE)
    | st.binary(max_size=200)
    | (_JSON | _TAGGED).map(lambda value: json.dumps(value).encode(errors="surrogatepass"))
)


def batches(size: int) -> st.SearchStrategy[list[bytes]]:
    """Lists of `size` requests: a few that hypothesis makes, and what becomes of them."""

    def grow(seeds: list[bytes], chance: random.Random) -> list[bytes]:
        return [*seeds, *_grown([*seeds, *WHOLE], chance, size - len(seeds))]

    return st.builds(
        grow,
        st.lists(_SEEDS, min_size=1, max_size=min(6, size)),
        st.integers(min_value=0, max_value=2**32).map(random.Random),
    )


def _grown(seeds: list[bytes], chance: random.Random, count: int) -> Iterator[bytes]:
    for _ in range(count):
        data = bytearray(chance.choice(seeds))
        for _ in range(chance.choice((1, 1, 2, 4))):
            chance.choice(_CHANGES)(data, seeds, chance)
        yield bytes(data[: 2 * MAX_REQUEST])


def _flip(data: bytearray, _seeds: list[bytes], chance: random.Random) -> None:
    if data:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def _cut(data: bytearray, _seeds: list[bytes], chance: random.Random) -> None:
    start = chance.randrange(len(data) + 1)
    del data[start : start + chance.randrange(len(data) + 1)]


def _insert(data: bytearray, _seeds: list[bytes], chance: random.Random) -> None:
    start = chance.randrange(len(data) + 1)
    data[start:start] = chance.randbytes(chance.randrange(1, 9))


def _splice(data: bytearray, seeds: list[bytes], chance: random.Random) -> None:
    other = chance.choice(seeds)
    data[chance.randrange(len(data) + 1) :] = other[chance.randrange(len(other) + 1) :]


def _repeat(data: bytearray, _seeds: list[bytes], chance: random.Random) -> None:
    start = chance.randrange(len(data) + 1)
    piece = data[start : start + chance.randrange(1, 20)]
    data[start:start] = piece * chance.choice((2, 30, 1000))


_CHANGES: tuple[Callable[[bytearray, list[bytes], random.Random], None], ...] = (
    _flip,
    _cut,
    _insert,
    _splice,
    _repeat,
)
