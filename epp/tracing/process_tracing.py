"""The tracing of a process: its tracer, and the export of what it records."""

import asyncio
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

import msgspec
import structlog
from prometheus_client.registry import CollectorRegistry

from epp.tracing.errors import TracingError
from epp.tracing.exporter import SpanDestination, SpanExporter, TracingCollector
from epp.tracing.otlp import export_request
from epp.tracing.request_trace import Attribute
from epp.tracing.settings import TracingSettings
from epp.tracing.span import Span
from epp.tracing.tracer import Tracer

if TYPE_CHECKING:
    from epp.tracing.senders import SpanSender

SCOPE: Final = "llm-d-router"
"""Name of the instrumentation scope, as in the Go EPP."""
_DISTRIBUTION: Final = "endpoint-picker"

log = structlog.get_logger()


class ProcessTracing:
    """Traces requests by ``settings``; its :meth:`run` belongs to the application's task group.

    Args:
        settings: How requests are traced.
        registry: Gets the metrics of the export.

    Raises:
        TracingError: A certificate file is invalid.
    """

    def __init__(self, settings: TracingSettings, registry: CollectorRegistry) -> None:
        self._settings = settings
        self._exporter: SpanExporter | None = None
        if settings.exporter != "none":
            is_otlp = settings.exporter == "otlp"
            self._exporter = SpanExporter(
                _collector_of(settings) if is_otlp else _Console(),
                pause_seconds=settings.export_seconds,
                max_queue=settings.max_queue,
            )
            registry.register(TracingCollector(self._exporter))
        self.tracer = Tracer(
            settings.sampler, None if self._exporter is None else self._exporter.export
        )
        """Traces the requests."""

    async def run(self) -> None:
        """Export until cancelled; then export what is left."""
        exporter, sampler = self._exporter, self._settings.sampler
        log.info(
            "requests are traced",
            spans="none: OTEL_EXPORTER_OTLP_ENDPOINT is not set"
            if exporter is None
            else exporter.destination,
            sampled=sampler.ratio,
            follows_callers=sampler.follows_parent,
        )
        if exporter is None:
            return
        exporter.start()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await asyncio.to_thread(exporter.stop)


def _collector_of(settings: TracingSettings) -> SpanDestination:
    from epp.tracing.senders import sender_of  # noqa: PLC0415 - only processes with tracing need it

    try:
        sender = sender_of(settings.otlp)
    except OSError as error:
        raise TracingError(f"the certificates of OTEL_EXPORTER_OTLP_…: {error}") from error
    return _Collector(sender, settings)


class _Collector:
    """Takes spans by OTLP."""

    def __init__(self, sender: "SpanSender", settings: TracingSettings) -> None:
        self.name = settings.otlp.endpoint
        self._sender = sender
        self._version = version(_DISTRIBUTION)
        self._resource: Mapping[str, Attribute] = {
            "telemetry.sdk.language": "python",
            "telemetry.sdk.name": _DISTRIBUTION,
            "telemetry.sdk.version": self._version,
            "service.version": self._version,
            **settings.resource,
        }

    def send(self, spans: Sequence[Span]) -> None:
        self._sender.send(export_request(spans, self._resource, SCOPE, self._version))

    def close(self) -> None:
        self._sender.close()


class _Console:
    """Writes spans to standard output, a line of JSON each."""

    name = "standard output"

    def send(self, spans: Sequence[Span]) -> None:
        lines = [msgspec.json.encode(span._asdict()).decode() for span in spans]
        print(*lines, sep="\n", file=sys.stdout)  # noqa: T201 - OTEL_TRACES_EXPORTER=console

    def close(self) -> None:
        pass
