"""Metrics of the ext_proc transport, computed from its counters at each scrape."""

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

_PREFIX = "llm_d_epp_transport_"


class TransportFigures(Protocol):
    """Statistics of the transport: counts since its start, and current values."""

    @property
    def connections(self) -> int: ...
    @property
    def streams(self) -> int: ...
    @property
    def waiting_bytes(self) -> int: ...
    @property
    def buffered_bytes(self) -> int: ...
    @property
    def header_cache_bytes(self) -> int: ...
    @property
    def connections_total(self) -> int: ...
    @property
    def streams_total(self) -> int: ...
    @property
    def header_cache_hits(self) -> int: ...
    @property
    def header_cache_misses(self) -> int: ...
    @property
    def refused(self) -> Mapping[str, int]: ...
    @property
    def ended(self) -> Mapping[str, int]: ...
    @property
    def held_back(self) -> Mapping[str, int]: ...
    @property
    def broken_off(self) -> Mapping[str, int]: ...


class TransportCollector(Collector):
    """Gauges and counters of one server."""

    def __init__(self, read: Callable[[], TransportFigures]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        """Read everything once."""
        now = self._read()
        for name, text, value in (
            ("connections", "HTTP/2 connections open.", now.connections),
            ("streams", "gRPC streams open.", now.streams),
            ("waiting_bytes", "Responses that wait for clients to read.", now.waiting_bytes),
            (
                "buffered_bytes",
                "Responses that wait for clients to read, and messages that are not whole.",
                now.buffered_bytes,
            ),
            ("header_cache_bytes", "Size of the header cache.", now.header_cache_bytes),
        ):
            yield GaugeMetricFamily(_PREFIX + name, text, value=value)
        for name, text, value in (
            ("connections", "HTTP/2 connections accepted.", now.connections_total),
            ("streams", "gRPC streams opened.", now.streams_total),
            ("header_cache_hits", "Header blocks found in the cache.", now.header_cache_hits),
            ("header_cache_misses", "Header blocks decoded.", now.header_cache_misses),
        ):
            yield CounterMetricFamily(f"{_PREFIX}{name}_total", text, value=value)
        yield _by(
            "refused_total",
            "Refused because of a limit or rule, by what was refused.",
            "what",
            now.refused,
        )
        yield _by(
            "connections_ended_total",
            "Connections ended by this side, by reason; ENHANCE_YOUR_CALM is a flood.",
            "reason",
            now.ended,
        )
        yield _by(
            "held_back_total",
            "How often a slow or silent client was waited for, by what was done.",
            "what",
            now.held_back,
        )
        yield _by(
            "streams_broken_off_total",
            "Streams that ended before their time, by reason.",
            "reason",
            now.broken_off,
        )


class CertificateCollector(Collector):
    """Expiry of the certificate of the ext_proc port, and number of reloads.

    Args:
        expires_at: Returns the expiry of the current one, in Unix time.
        reloads: Returns the number of reloads by result.
    """

    def __init__(
        self, expires_at: Callable[[], float], reloads: Callable[[], Mapping[str, int]]
    ) -> None:
        self._expires_at = expires_at
        self._reloads = reloads

    def collect(self) -> Iterable[Metric]:
        """Read everything once."""
        yield GaugeMetricFamily(
            f"{_PREFIX}certificate_expiry_timestamp_seconds",
            "When the certificate in use expires.",
            value=self._expires_at(),
        )
        yield _by(
            "certificate_reloads_total",
            "Changes of the files of TLS, by result (success, failure).",
            "result",
            self._reloads(),
        )


def _by(name: str, text: str, label: str, values: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(_PREFIX + name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family
