"""The tracing of a process: its tracer, and the export of what it records."""

import asyncio
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Final

import msgspec
from prometheus_client.registry import CollectorRegistry

from epp.tracing.errors import TracingError
from epp.tracing.exporter import Send, SpanExporter, TracingCollector
from epp.tracing.otlp import export_request
from epp.tracing.request_trace import Attribute
from epp.tracing.settings import TracingSettings
from epp.tracing.span import Span
from epp.tracing.tracer import Tracer

SCOPE: Final = "llm-d-router"
"""Name of the instrumentation scope, as in the Go EPP."""
_DISTRIBUTION: Final = "endpoint-picker"
_CONSOLE: Final = "standard output"


class ProcessTracing:
    """Traces requests by ``settings``; its :meth:`run` belongs to the application's task group.

    Args:
        settings: How requests are traced.
        registry: Gets the metrics of the export.

    Raises:
        TracingError: A certificate file is invalid.
    """

    def __init__(self, settings: TracingSettings, registry: CollectorRegistry) -> None:
        self._exporter: SpanExporter | None = None
        if settings.exporter != "none":
            is_otlp = settings.exporter == "otlp"
            self._exporter = SpanExporter(
                _otlp_send(settings) if is_otlp else _print,
                pause_seconds=settings.export_seconds,
                max_queue=settings.max_queue,
                destination=settings.otlp.endpoint if is_otlp else _CONSOLE,
            )
            registry.register(TracingCollector(self._exporter))
        self.tracer = Tracer(
            settings.sampler, None if self._exporter is None else self._exporter.export
        )
        """Traces the requests."""

    async def run(self) -> None:
        """Export until cancelled; then export what is left."""
        exporter = self._exporter
        if exporter is None:
            return
        exporter.start()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await asyncio.to_thread(exporter.stop)


def _otlp_send(settings: TracingSettings) -> Send:
    from epp.tracing.senders import sender_of  # noqa: PLC0415 - only processes with tracing need it

    own_version = version(_DISTRIBUTION)
    resource: Mapping[str, Attribute] = {
        "telemetry.sdk.language": "python",
        "telemetry.sdk.name": _DISTRIBUTION,
        "telemetry.sdk.version": own_version,
        "service.version": own_version,
        **settings.resource,
    }
    try:
        sender = sender_of(settings.otlp)
    except OSError as error:
        raise TracingError(f"the certificates of OTEL_EXPORTER_OTLP_…: {error}") from error

    def send(spans: Sequence[Span]) -> None:
        sender.send(export_request(spans, resource, SCOPE, own_version))

    return send


def _print(spans: Sequence[Span]) -> None:
    """Write spans to standard output, a line of JSON each."""
    lines = [msgspec.json.encode(span._asdict()).decode() for span in spans]
    print(*lines, sep="\n", file=sys.stdout)  # noqa: T201 - what OTEL_TRACES_EXPORTER=console asks for
