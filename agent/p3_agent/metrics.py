"""An agent's status as Prometheus metrics: base units (bytes, seconds), one name a quantity.

Pure. Needs prometheus-client, the extra `metrics`; nothing else in the agent imports it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric

from p3_agent.messages import ClassStatus, Status

CONTENT_TYPE = CONTENT_TYPE_LATEST
UNMARKED = "unmarked"
"""The label `band` of everything that carries no band's DSCP."""

_OK = "ok"
_Value = Callable[[ClassStatus], float | None]

_BAND_COUNTERS: Sequence[tuple[str, str, _Value]] = (
    ("p3_band_sent_bytes", "Bytes sent, as the qdisc counts them.", lambda band: band.bytes),
    ("p3_band_sent_packets", "Packets sent.", lambda band: band.packets),
    ("p3_band_dropped_packets", "Packets dropped.", lambda band: band.drops),
    ("p3_band_overlimits", "Times a packet had to wait.", lambda band: band.overlimits),
)
_BAND_GAUGES: Sequence[tuple[str, str, _Value]] = (
    ("p3_band_backlog_bytes", "Bytes that wait now.", lambda band: band.backlog_bytes),
    ("p3_band_backlog_packets", "Packets that wait now.", lambda band: band.backlog_packets),
    (
        "p3_band_guarantee_bytes_per_second",
        "What the band gets while others are urgent; absent where there is no guarantee.",
        lambda band: None if band.guarantee is None else band.guarantee / 8,
    ),
)


def exposition(status: Status) -> bytes:
    """The metrics of one moment in Prometheus's text format."""
    return generate_latest(_Moment(status))


class _Moment:
    """What `generate_latest` takes in place of a registry: nothing is kept between scrapes."""

    def __init__(self, status: Status) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        yield from _agent(self._status)
        for name, text, value in _BAND_COUNTERS:
            counter = CounterMetricFamily(name, text, labels=("device", "band", "dscp"))
            yield _per_band(counter, self._status, value)
        for name, text, value in _BAND_GAUGES:
            gauge = GaugeMetricFamily(name, text, labels=("device", "band", "dscp"))
            yield _per_band(gauge, self._status, value)


def _agent(status: Status) -> Iterator[Metric]:
    about = {"version": status.version, "mode": status.mode}
    info = InfoMetricFamily("p3_agent", "Which agent this is.", labels=("device",))
    info.add_metric((status.device,), about)
    yield info
    yield _gauge("p3_agent_ok", "1 while the bands are in place.", status, status.state == _OK)
    yield _counter(
        "p3_agent_reconciliations",
        "Comparisons with the wanted tree.",
        status.reconciliations,
        status,
    )
    yield _counter(
        "p3_agent_drift_repairs", "Times that others had changed it.", status.drift.repairs, status
    )
    if status.rate is not None:
        text = "What the interface is shaped to."
        yield _gauge("p3_interface_rate_bytes_per_second", text, status, status.rate / 8)
    yield _jobs(status)


def _jobs(status: Status) -> Metric:
    family = GaugeMetricFamily(
        "p3_job_processes", "Connected processes of a training job.", labels=("device", "job")
    )
    for name, count in sorted(Counter(job.name for job in status.jobs).items()):
        family.add_metric((status.device, name), count)
    return family


def _gauge(name: str, text: str, status: Status, value: float) -> Metric:
    family = GaugeMetricFamily(name, text, labels=("device",))
    family.add_metric((status.device,), value)
    return family


def _counter(name: str, text: str, value: float, status: Status) -> Metric:
    family = CounterMetricFamily(name, text, labels=("device",))
    family.add_metric((status.device,), value)
    return family


def _per_band(
    family: CounterMetricFamily | GaugeMetricFamily, status: Status, value: _Value
) -> Metric:
    for item in status.classes:
        number = value(item)
        if number is not None:
            band = UNMARKED if item.band is None else str(item.band)
            dscp = "" if item.dscp is None else str(item.dscp)
            family.add_metric((status.device, band, dscp), number)
    return family
