"""The engine `ps` with a codec: contributions and sums travel encoded."""

from __future__ import annotations

import numpy as np

from p3.aggregator import Aggregator, Sum
from p3.arithmetic import Bytes
from p3.codecs import CODECS
from p3.coding import CodedAggregator, Coder
from p3.engine import Job, Network, P3Error
from p3.ps import ParameterServer
from p3.rendezvous import Exchange
from p3.wire import ErrorCode, FrameType, PayloadEnds, PayloadStarts, RemoteError, SliceTable


class CodedServer(ParameterServer):
    """As ParameterServer; `codec` is one of `codecs.CODECS`.

    The sum that all ranks go on with is the decoded one. Raises P3Error when some servers do not
    work: they hear nothing of codecs.
    """

    def __init__(
        self, job: Job, codec: str, *, exchange: Exchange, network: Network, port_buffer: int
    ) -> None:
        if job.plan.members != job.plan.world_size:
            raise P3Error(f"codec={codec!r} needs servers that work: leave servers= out")
        self._coder = Coder(job.plan, job.rank, CODECS[codec])
        self._sum_bytes = self._coder.sum_bytes()
        self._sums: dict[int, Bytes] = {}
        super().__init__(
            job,
            exchange=exchange,
            network=network,
            port_buffer=port_buffer,
            servers_do=f"sum, codec {codec}",
        )

    def _new_aggregator(self) -> Aggregator:
        job = self._job
        return CodedAggregator(job.plan, job.rank, job.payloads, job.adders, self._coder)

    def _table(self) -> SliceTable:
        return SliceTable(
            sizes=self._coder.push_bytes(),
            sum_sizes=self._sum_bytes,
            servers=[piece.server for piece in self._slices],
            world_size=self._job.plan.members,
        )

    def _push_view(self, index: int) -> memoryview:
        return self._coder.encode_push(index, self._job.payloads[index]).data

    def _sum_view(self, total: Sum) -> memoryview:
        assert total.encoded is not None
        return total.encoded.data

    def starts(self, peer: int, event: PayloadStarts) -> memoryview:
        """See `transport.User`."""
        place = super().starts(peer, event)
        if event.type is FrameType.PUSH:
            return place
        self._sums[event.index] = np.empty(self._sum_bytes[event.index], dtype=np.uint8)
        return self._sums[event.index].data

    def ends(self, peer: int, event: PayloadEnds) -> None:
        """See `transport.User`."""
        try:
            if event.type is not FrameType.PUSH:
                data = self._sums.pop(event.index)
                self._coder.decode_sum(event.index, data, self._job.payloads[event.index])
        except ValueError as error:
            text = f"the sum of slice {event.index} from rank {peer}: {error}"
            raise RemoteError(ErrorCode.PROTOCOL, text) from error
        super().ends(peer, event)
