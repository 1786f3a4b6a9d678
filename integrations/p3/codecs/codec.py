"""What a codec is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]


@dataclass(slots=True)
class State:
    """What a codec keeps for one slice in one direction: numbers by name, and its random source.

    One a slice: error that is fed back belongs to the elements it was made on.
    """

    random: np.random.Generator
    kept: dict[str, Floats] = field(default_factory=dict)

    def of(self, name: str, numel: int) -> Floats:
        """The array `name`, zeros at first."""
        if name not in self.kept:
            self.kept[name] = np.zeros(numel, dtype=np.float32)
        return self.kept[name]


class Codec(Protocol):
    """float32 arrays (1-D) to bytes of a size that their length alone decides, and back.

    A `push` is one worker's gradient, a `sum` what `workers` of them came to at a server; they may
    travel in different forms. Encoding changes `state` and leaves its input alone.
    """

    @property
    def name(self) -> str:
        """What the user calls it."""
        ...

    def push_bytes(self, numel: int) -> int:
        """Bytes of an encoded push."""
        ...

    def sum_bytes(self, numel: int, workers: int) -> int:
        """Bytes of an encoded sum."""
        ...

    def encode_push(self, values: Floats, state: State) -> Bytes:
        """A worker's gradient as bytes."""
        ...

    def decode_push(self, data: Bytes, numel: int) -> Floats:
        """What the server adds. ValueError for bytes that no encoder made."""
        ...

    def encode_sum(self, values: Floats, workers: int, state: State) -> Bytes:
        """A sum as bytes."""
        ...

    def decode_sum(self, data: Bytes, numel: int, workers: int) -> Floats:
        """What workers take for the sum. ValueError for bytes that no encoder made."""
        ...


class Symmetric:
    """A codec whose sums travel as pushes do."""

    def push_bytes(self, numel: int) -> int:
        """See Codec."""
        raise NotImplementedError

    def encode_push(self, values: Floats, state: State) -> Bytes:
        """See Codec."""
        raise NotImplementedError

    def decode_push(self, data: Bytes, numel: int) -> Floats:
        """See Codec."""
        raise NotImplementedError

    def sum_bytes(self, numel: int, workers: int) -> int:  # noqa: ARG002
        """See Codec."""
        return self.push_bytes(numel)

    def encode_sum(self, values: Floats, workers: int, state: State) -> Bytes:  # noqa: ARG002
        """See Codec."""
        return self.encode_push(values, state)

    def decode_sum(self, data: Bytes, numel: int, workers: int) -> Floats:  # noqa: ARG002
        """See Codec."""
        return self.decode_push(data, numel)
