"""Encoded spans are those of OpenTelemetry's encoder, for the same spans."""

from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event as SdkEvent
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags, TraceState
from opentelemetry.trace import SpanKind as SdkKind

from epp.tracing.otlp import export_request
from epp.tracing.span import Span, SpanEvent, SpanKind

KINDS = {
    SpanKind.INTERNAL: SdkKind.INTERNAL,
    SpanKind.SERVER: SdkKind.SERVER,
    SpanKind.CLIENT: SdkKind.CLIENT,
}
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
number = st.integers(-(1 << 63), (1 << 63) - 1)
real = st.floats(allow_nan=False)
attributes = st.dictionaries(
    text.filter(bool),
    st.one_of(
        text,
        number,
        real,
        st.booleans(),
        st.lists(text, max_size=3),
        st.lists(real, max_size=3),
    ),
    max_size=5,
)
nanoseconds = st.integers(0, (1 << 64) - 1)
spans = st.builds(
    Span,
    trace_id=st.integers(1, (1 << 128) - 1).map("{:032x}".format),
    span_id=st.integers(1, (1 << 64) - 1).map("{:016x}".format),
    parent_id=st.one_of(st.just(""), st.integers(1, (1 << 64) - 1).map("{:016x}".format)),
    is_parent_remote=st.booleans(),
    state=st.sampled_from(["", "vendor=1", "a=1,b=2"]),
    name=text.filter(bool),
    kind=st.sampled_from(SpanKind),
    began_ns=nanoseconds,
    ended_ns=nanoseconds,
    attributes=attributes,
    events=st.lists(st.builds(SpanEvent, name=text, at_ns=nanoseconds), max_size=2).map(tuple),
    error=text,
).filter(lambda span: bool(span.parent_id) or not span.is_parent_remote)


def sdk_span(span: Span, resource: Resource, scope: InstrumentationScope) -> ReadableSpan:
    trace_id = int(span.trace_id, 16)
    state = TraceState.from_header([span.state]) if span.state else None

    def context(span_id: str, *, is_remote: bool = False) -> SpanContext:
        flags = TraceFlags(TraceFlags.SAMPLED)
        return SpanContext(trace_id, int(span_id, 16), is_remote, flags, state)

    is_remote = span.is_parent_remote
    return ReadableSpan(
        span.name,
        context(span.span_id),
        context(span.parent_id, is_remote=is_remote) if span.parent_id else None,
        resource,
        span.attributes,
        [SdkEvent(each.name, timestamp=each.at_ns) for each in span.events],
        kind=KINDS[span.kind],
        instrumentation_scope=scope,
        status=Status(StatusCode.ERROR, span.error) if span.error else Status(),
        start_time=span.began_ns,
        end_time=span.ended_ns,
    )


@given(st.lists(spans, min_size=1, max_size=3), st.dictionaries(text.filter(bool), text))
def test_a_request_is_that_of_the_sdks_encoder(
    given_spans: list[Span], about: dict[str, str]
) -> None:
    encoded = export_request(given_spans, about, "scope", "1.2")
    decoded = ExportTraceServiceRequest.FromString(encoded)
    resource, scope = Resource(about), InstrumentationScope("scope", "1.2")
    expected = encode_spans([sdk_span(each, resource, scope) for each in given_spans])
    for each, span in zip(
        expected.resource_spans[0].scope_spans[0].spans, given_spans, strict=True
    ):
        each.flags |= TraceFlags.SAMPLED  # the SDK leaves out the span's own flags
        if not span.error:
            each.ClearField("status")  # and writes an empty status
    assert decoded == expected


def test_half_a_character_is_replaced() -> None:
    span = Span("1" * 32, "2" * 16, "", False, "", "s", SpanKind.SERVER, 1, 2, {"model": "a\ud83d"})
    decoded = ExportTraceServiceRequest.FromString(export_request([span], {}, "s", "1"))
    (attribute,) = decoded.resource_spans[0].scope_spans[0].spans[0].attributes
    assert attribute.value.string_value == "a?"
