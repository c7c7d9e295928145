"""Whose trace a request continues: the gateway's, the caller's, or a new one."""

import random
from collections.abc import Mapping

import pytest

from epp.tracing import UNCHANGED, RequestTrace, Sampler, Tracer

CALLERS = f"00-{1:032x}-{2:016x}-01"
GATEWAYS = f"00-{1:032x}-{3:016x}-01"
NOT_SAMPLED = f"00-{1:032x}-{3:016x}-00"


def begun(headers: Mapping[str, str], gateway: Mapping[str, str]) -> RequestTrace | None:
    tracer = Tracer(Sampler(0.0), lambda _: None, random.Random(1))
    trace, _ = tracer.begin(headers, gateway)
    return trace


@pytest.mark.parametrize(
    ("gateway", "span_id", "state"),
    [
        ({}, 2, "caller=1"),
        ({"traceparent": GATEWAYS, "tracestate": "gateway=1"}, 3, "gateway=1"),
        ({"traceparent": GATEWAYS}, 3, ""),
        ({"traceparent": "nonsense", "tracestate": "gateway=1"}, 2, "caller=1"),
    ],
    ids=["the gateway does not trace", "both", "without state", "an invalid one"],
)
def test_the_gateways_span_is_the_parent_before_the_callers(
    gateway: Mapping[str, str], span_id: int, state: str
) -> None:
    trace = begun({"traceparent": CALLERS, "tracestate": "caller=1"}, gateway)
    assert trace is not None
    assert trace.parent is not None
    assert (trace.trace_id, trace.parent.span_id) == (f"{1:032x}", f"{span_id:016x}")
    assert trace.state == state
    assert trace.traceparent == f"00-{1:032x}-{trace.upstream_id}-01"


@pytest.mark.parametrize("headers", [{}, {"traceparent": CALLERS}])
def test_the_gateways_decision_not_to_sample_is_followed(headers: Mapping[str, str]) -> None:
    tracer = Tracer(Sampler(1.0), lambda _: None)
    assert tracer.begin(headers, {"traceparent": NOT_SAMPLED}) == (None, UNCHANGED)
