"""Traces requests with OpenTelemetry: W3C Trace Context in and out, spans by OTLP.

A sampled request has a :class:`RequestTrace`, which collects times and facts on its way
(:mod:`.request_trace`, :mod:`.recording`). When it has ended, a thread makes spans from it
(:mod:`.spans`), encodes and sends them (:mod:`.exporter`). Any other request has None.

The SDK of OpenTelemetry is not used: it makes and encodes the 15 spans of a default request in
440 us, several times what the request itself costs; here encoding takes 85 us. Tests
compare bytes, samplers and headers with the SDK's.
"""

from epp.tracing.errors import TracingError
from epp.tracing.process_tracing import ProcessTracing
from epp.tracing.recording import CallRecorder
from epp.tracing.request_trace import Attribute, RequestTrace
from epp.tracing.sampling import Sampler
from epp.tracing.settings import VARIABLES, OtlpSettings, TracingSettings, tracing_settings
from epp.tracing.trace_context import NO_TRACE, TRACEPARENT, TRACESTATE
from epp.tracing.tracer import NO_HEADERS, UNCHANGED, Propagated, Tracer

__all__ = [
    "NO_HEADERS",
    "NO_TRACE",
    "TRACEPARENT",
    "TRACESTATE",
    "UNCHANGED",
    "VARIABLES",
    "Attribute",
    "CallRecorder",
    "OtlpSettings",
    "ProcessTracing",
    "Propagated",
    "RequestTrace",
    "Sampler",
    "Tracer",
    "TracingError",
    "TracingSettings",
    "tracing_settings",
]
