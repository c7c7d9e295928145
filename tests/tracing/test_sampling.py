"""Samplers decide as those of OpenTelemetry's SDK."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace import sampling as sdk
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    TraceFlags,
    set_span_in_context,
)

from epp.tracing.sampling import SAMPLERS, Sampler, sampler_of
from epp.tracing.trace_context import TraceParent

SPAN_ID = "b7ad6b7169203331"


def sdk_sampler(name: str, ratio: float) -> sdk.Sampler:
    kind = name.removeprefix("parentbased_")
    root: sdk.Sampler = sdk.TraceIdRatioBased(ratio)
    if kind != "traceidratio":
        root = sdk.ALWAYS_ON if kind == "always_on" else sdk.ALWAYS_OFF
    return sdk.ParentBased(root) if name != kind else root


@given(
    st.sampled_from(SAMPLERS),
    st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    st.integers(1, (1 << 128) - 1),
    st.sampled_from([None, False, True]),
)
def test_a_decision_is_that_of_the_sdk(
    name: str, ratio: float, number: int, parent_is_sampled: bool | None
) -> None:
    trace_id = f"{number:032x}"
    parent, context = None, None
    if parent_is_sampled is not None:
        parent = TraceParent(trace_id, SPAN_ID, parent_is_sampled)
        flags = TraceFlags(TraceFlags.SAMPLED if parent_is_sampled else TraceFlags.DEFAULT)
        span = SpanContext(number, int(SPAN_ID, 16), is_remote=True, trace_flags=flags)
        context = set_span_in_context(NonRecordingSpan(span))
    expected = sdk_sampler(name, ratio).should_sample(context, number, "span")
    sampler = sampler_of(name, str(ratio))
    decided = sampler.begins(number) if parent is None else sampler.samples(parent)
    assert decided is (expected.decision is sdk.Decision.RECORD_AND_SAMPLE)


def test_a_tenth_is_sampled_by_default_as_in_the_go_epp() -> None:
    assert sampler_of("", "") == Sampler(0.1, follows_parent=True)


@pytest.mark.parametrize(
    ("name", "argument", "problem"),
    [
        ("xray", "", "OTEL_TRACES_SAMPLER is 'xray'; it must be one of always_on, always_off,"),
        ("traceidratio", "half", "OTEL_TRACES_SAMPLER_ARG is 'half'"),
        ("traceidratio", "1.5", "it must be a number from 0 to 1"),
        ("traceidratio", "-1", "it must be a number from 0 to 1"),
        ("traceidratio", "nan", "it must be a number from 0 to 1"),
    ],
)
def test_an_invalid_sampler_is_refused(name: str, argument: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        sampler_of(name, argument)


def test_an_argument_that_the_sampler_does_not_take_is_ignored() -> None:
    assert sampler_of("always_on", "half") == Sampler(1.0, follows_parent=False)
