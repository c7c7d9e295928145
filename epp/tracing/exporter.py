"""The export thread: makes spans from ended traces, encodes and sends them, all off the loop.

The event loop only appends to a bounded queue. While the collector cannot be reached, the thread
waits longer and longer, the queue fills, and further traces are dropped and counted.
"""

import random
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

import structlog
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from epp.tracing.errors import SendError
from epp.tracing.request_trace import RequestTrace
from epp.tracing.span import Span
from epp.tracing.spans import spans_of

BATCH: Final = 64
"""Traces in one request: making and encoding their spans takes 3 ms."""
RETRY_SECONDS: Final = 30.0
"""How long a request that the collector does not take is retried."""
_FIRST_PAUSE_SECONDS: Final = 0.5
_LONGEST_PAUSE_SECONDS: Final = 5.0
LOG_SECONDS: Final = 60.0
"""Minimum time between two log lines about failed exports."""
STOP_SECONDS: Final = 5.0
"""How long the end of the process waits for the last export."""

log = structlog.get_logger()


class SpanDestination(Protocol):
    """Where spans go."""

    @property
    def name(self) -> str:
        """Its name in the log."""

    def send(self, spans: Sequence[Span]) -> None:
        """Send spans; blocks.

        Raises:
            SendError: They could not be sent.
        """

    def close(self) -> None:
        """Close connections."""


class SpanExporter:
    """A bounded queue of traces, and the thread that exports them.

    Args:
        destination: Takes the spans.
        pause_seconds: Pause between two exports.
        max_queue: Traces that may wait.
    """

    def __init__(
        self, destination: SpanDestination, *, pause_seconds: float, max_queue: int
    ) -> None:
        self.exported = 0
        """Spans that were sent."""
        self.dropped_full = 0
        """Traces that were dropped because the queue was full."""
        self.dropped_failed = 0
        """Traces that were dropped because they could not be sent."""
        self._pause_seconds = pause_seconds
        self._max_queue = max_queue
        self._destination = destination
        self._queue: deque[RequestTrace] = deque()
        self._rng = random.Random()  # noqa: S311 - ids must be unique, not secret
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="span-export", daemon=True)
        self._is_failing = False
        self._logged_at = float("-inf")

    @property
    def destination(self) -> str:
        """Where spans go."""
        return self._destination.name

    def export(self, trace: RequestTrace) -> None:
        """Queue the trace of a request that has ended; used in the event loop."""
        if len(self._queue) < self._max_queue:
            self._queue.append(trace)
        else:
            self.dropped_full += 1

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Export what is queued, and end the thread; blocks for :data:`STOP_SECONDS` at most."""
        self._stopping.set()
        self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._stopping.wait(self._pause_seconds)
            while self._queue:
                self._export_batch()
        self._destination.close()

    def _export_batch(self) -> None:
        queue = self._queue
        traces = [queue.popleft() for _ in range(min(BATCH, len(queue)))]
        try:
            spans = [span for trace in traces for span in spans_of(trace, self._rng)]
            self._send_again_and_again(spans)
        except SendError as error:
            self.dropped_failed += len(traces)
            self._failed(str(error))
        except Exception as error:  # the thread must live on
            self.dropped_failed += len(traces)
            self._failed(f"{type(error).__name__}: {error}", error)
        else:
            self.exported += len(spans)
            if self._is_failing:
                self._is_failing = False
                log.info("spans exported again", endpoint=self._destination.name)

    def _send_again_and_again(self, spans: Sequence[Span]) -> None:
        """Send ``spans``; raise the last error if that takes too long, or the process stops."""
        give_up, pause = time.monotonic() + RETRY_SECONDS, _FIRST_PAUSE_SECONDS
        while True:
            try:
                self._destination.send(spans)
            except SendError as error:
                is_hopeless = not error.is_temporary or time.monotonic() + pause > give_up
                if is_hopeless or self._stopping.is_set():
                    raise
                self._failed(str(error))
            else:
                return
            self._stopping.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def _failed(self, why: str, fault: Exception | None = None) -> None:
        self._is_failing = True
        now = time.monotonic()
        if now - self._logged_at < LOG_SECONDS:
            return
        self._logged_at = now
        log.warning(
            "spans not exported",
            endpoint=self._destination.name,
            error=why,
            dropped_traces=self.dropped_full + self.dropped_failed,
            exc_info=fault,
        )


class TracingCollector(Collector):
    """The metrics of the export."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter

    def collect(self) -> Iterable[Metric]:
        exporter = self._exporter
        exported = CounterMetricFamily(
            "llm_d_epp_trace_spans_exported_total", "Spans that the collector has taken."
        )
        exported.add_metric([], exporter.exported)
        yield exported
        dropped = CounterMetricFamily(
            "llm_d_epp_traces_dropped_total",
            "Traces of requests that were not exported, by reason: the queue was full, or sending"
            " failed.",
            labels=["reason"],
        )
        dropped.add_metric(["queue-full"], exporter.dropped_full)
        dropped.add_metric(["send-failed"], exporter.dropped_failed)
        yield dropped
