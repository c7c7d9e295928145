"""``traceparent`` is read as OpenTelemetry's own propagator reads it."""

import random

from hypothesis import example, given
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from epp.tracing.trace_context import (
    TRACEPARENT,
    TRACESTATE,
    TraceParent,
    new_span_id,
    new_trace_number,
    parent_of,
    state_of,
    traceparent,
)

VALID = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def sdk_parent(value: str) -> TraceParent | None:
    found = trace.get_current_span(
        TraceContextTextMapPropagator().extract({TRACEPARENT: value})
    ).get_span_context()
    if not found.is_valid:
        return None
    flags = found.trace_flags
    return TraceParent(f"{found.trace_id:032x}", f"{found.span_id:016x}", flags.sampled)


hexadecimal = st.text("0123456789abcdef")
values = st.one_of(
    st.builds(
        lambda version, trace_id, span_id, flags, rest: (
            f"{version}-{trace_id:032x}-{span_id:016x}-{flags:02x}{rest}"
        ),
        st.sampled_from(["00", "01", "cc", "ff"]),
        st.integers(0, (1 << 128) - 1),
        st.integers(0, (1 << 64) - 1),
        st.integers(0, 255),
        st.sampled_from(["", "-", "-00", "-more", "00"]),
    ),
    st.text("0123456789abcdefABCDEF-", max_size=70),
    hexadecimal.map(lambda text: VALID.replace("b7ad", text[:6])),
)


@given(values)
@example(VALID)
@example(VALID.replace("b7ad6b7169203331", "0" * 16))
@example(VALID.replace("0af7651916cd43dd8448eb211c80319c", "0" * 32))
@example(VALID.upper())
@example(f"01{VALID[2:]}-more")
@example(f"{VALID}-more")
@example(f"ff{VALID[2:]}")
def test_a_parent_is_read_as_the_sdk_reads_it(value: str) -> None:
    assert parent_of({TRACEPARENT: value}) == sdk_parent(value)


def test_without_the_header_there_is_no_parent() -> None:
    assert parent_of({}) is None


@given(st.integers(), st.booleans())
def test_what_is_sent_can_be_read(seed: int, is_sampled: bool) -> None:
    rng = random.Random(seed)
    sent = TraceParent(f"{new_trace_number(rng):032x}", new_span_id(rng), is_sampled)
    value = traceparent(sent.trace_id, sent.span_id, is_sampled=is_sampled)
    assert parent_of({TRACEPARENT: value}) == sent == sdk_parent(value)


def test_a_long_tracestate_is_no_part_of_a_span() -> None:
    assert state_of({}) == ""
    assert state_of({TRACESTATE: "a=1,b=2"}) == "a=1,b=2"
    assert state_of({TRACESTATE: "a=" + "x" * 511}) == ""
    assert state_of({TRACESTATE: ",".join(f"k{n}=1" for n in range(32))}) != ""
    assert state_of({TRACESTATE: ",".join(f"k{n}=1" for n in range(33))}) == ""
