"""Slices as a codec has them: state by slice, sizes on the wire, sums that are alike everywhere.

Each worker encodes its contribution; the server decodes and adds them, and encodes the sum. All
ranks, the server among them, go on with the decoded sum, so that their parameters stay the same.
Presence flags travel as they are, and so do slices that are not float32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from p3.aggregator import Aggregator, ContributionError, Sum
from p3.arithmetic import Add, Bytes
from p3.codecs import Codec
from p3.codecs.codec import State
from p3.slicing import Slice, SlicePlan

_SEED = 1905_03960
_PUSH, _SUM = range(2)


class Coder:
    """One rank's codec for a plan's slices. One thread."""

    def __init__(self, plan: SlicePlan, rank: int, codec: Codec) -> None:
        self._codec = codec
        self._rank = rank
        self._workers = plan.world_size
        self._slices = plan.slices
        self._states: dict[tuple[int, int], State] = {}

    def push_bytes(self) -> list[int]:
        """What a push of each slice takes on the wire."""
        return [
            self._codec.push_bytes(piece.numel) + _flag_bytes(piece)
            if _coded(piece)
            else piece.payload_bytes
            for piece in self._slices
        ]

    def sum_bytes(self) -> list[int]:
        """What a sum of each slice takes on the wire."""
        return [
            self._codec.sum_bytes(piece.numel, self._workers) + _flag_bytes(piece)
            if _coded(piece)
            else piece.payload_bytes
            for piece in self._slices
        ]

    def encode_push(self, index: int, payload: Bytes) -> Bytes:
        """This worker's contribution, as bytes of their own."""
        piece = self._slices[index]
        if not _coded(piece):
            return payload.copy()
        values, flags = _parts(piece, payload)
        data = self._codec.encode_push(values.view(np.float32), self._state(index, _PUSH))
        return np.concatenate((data, flags))

    def decode_push(self, index: int, data: Bytes, payload: Bytes) -> None:
        """A worker's contribution, into `payload`. ValueError for what no encoder made."""
        piece = self._slices[index]
        if _coded(piece):
            size = self._codec.push_bytes(piece.numel)
            values, flags = _parts(piece, payload)
            values[:] = self._codec.decode_push(data[:size], piece.numel).view(np.uint8)
            flags[:] = data[size:]
        else:
            payload[:] = data

    def encode_sum(self, index: int, payload: Bytes) -> Bytes:
        """A sum, as bytes of their own."""
        piece = self._slices[index]
        if not _coded(piece):
            return payload.copy()
        values, flags = _parts(piece, payload)
        state = self._state(index, _SUM)
        data = self._codec.encode_sum(values.view(np.float32), self._workers, state)
        return np.concatenate((data, flags))

    def decode_sum(self, index: int, data: Bytes, payload: Bytes) -> None:
        """A sum, into `payload`. ValueError for what no encoder made."""
        piece = self._slices[index]
        if _coded(piece):
            size = self._codec.sum_bytes(piece.numel, self._workers)
            values, flags = _parts(piece, payload)
            decoded = self._codec.decode_sum(data[:size], piece.numel, self._workers)
            values[:] = decoded.view(np.uint8)
            flags[:] = data[size:]
        else:
            payload[:] = data

    def _state(self, index: int, direction: int) -> State:
        # Seeded by slice, so that runs are the same whatever the order of arrival.
        key = (index, direction)
        if key not in self._states:
            seed = [_SEED, self._rank, index, direction]
            self._states[key] = State(np.random.default_rng(seed))
        return self._states[key]


class CodedAggregator(Aggregator):
    """As Aggregator, of contributions that come encoded; sums carry what to send of them."""

    def __init__(
        self,
        plan: SlicePlan,
        rank: int,
        payloads: Sequence[Bytes],
        adders: Mapping[str, Add],
        coder: Coder,
    ) -> None:
        super().__init__(plan, rank, payloads, adders)
        self._coder = coder
        self._push_bytes = coder.push_bytes()
        self._coming: dict[tuple[int, int], tuple[Bytes, memoryview]] = {}

    def reserve(self, index: int, iteration: int, rank: int) -> memoryview:
        """Where the encoded contribution of `rank` is to be received; see Aggregator."""
        decoded = super().reserve(index, iteration, rank)
        data: Bytes = np.empty(self._push_bytes[index], dtype=np.uint8)
        self._coming[index, rank] = (data, decoded)
        return data.data

    def arrived(self, index: int, rank: int) -> Sum | None:
        """See Aggregator. ContributionError for bytes that no encoder made."""
        data, decoded = self._coming.pop((index, rank))
        try:
            self._coder.decode_push(index, data, np.frombuffer(decoded, dtype=np.uint8))
        except ValueError as error:
            raise ContributionError(f"rank {rank}'s part of slice {index}: {error}") from error
        return self._encoded(super().arrived(index, rank))

    def add_own(self, index: int, iteration: int) -> Sum | None:
        """See Aggregator; this rank's contribution loses what others' lose."""
        payload = self._payloads[index]
        self._coder.decode_push(index, self._coder.encode_push(index, payload), payload)
        return self._encoded(super().add_own(index, iteration))

    def _encoded(self, total: Sum | None) -> Sum | None:
        if total is not None:
            total.encoded = self._coder.encode_sum(total.index, total.payload)
            self._coder.decode_sum(total.index, total.encoded, total.payload)
        return total


def _coded(piece: Slice) -> bool:
    return piece.dtype == "float32"


def _flag_bytes(piece: Slice) -> int:
    return piece.payload_bytes - piece.numel * piece.itemsize


def _parts(piece: Slice, payload: Bytes) -> tuple[Bytes, Bytes]:
    """The gradient and the flags in a payload."""
    end = piece.numel * piece.itemsize
    return payload[:end], payload[end:]
