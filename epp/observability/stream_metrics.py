"""The Go EPP's metrics of ext_proc streams; opt-in."""

from typing import Final

from prometheus_client import CollectorRegistry

from epp.observability.metric_families import Maker

# The Go EPP's buckets: a stream lives as long as its HTTP request.
_OPEN: Final = (
    *(0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0),
)


class StreamMetrics:
    """Counts the streams of the ext_proc port and times them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        make = Maker(registry)
        self._open = make.gauge("extproc_streams_inflight", "gRPC streams open.", ()).labels()
        self._seconds = make.histogram(
            "extproc_stream_duration_seconds", "Time that a gRPC stream was open.", (), _OPEN
        ).labels()
        self._ended = make.counter(
            "extproc_streams_total", "gRPC streams that have ended, by status code.", ("code",)
        )

    def opened(self) -> None:
        """Count a stream that begins."""
        self._open.inc()

    def ended(self, code: str, seconds: float) -> None:
        """Count a stream that ends.

        Args:
            code: Name of its gRPC status, such as ``OK``; from a closed set.
            seconds: How long it was open.
        """
        self._open.dec()
        self._seconds.observe(seconds)
        self._ended.labels(code).inc()
