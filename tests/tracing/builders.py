"""Builds traces for tests."""

import random

from epp.tracing.recording import CallRecorder
from epp.tracing.request_trace import RequestTrace
from epp.tracing.trace_context import new_trace_number


def make_trace(seed: int = 1) -> RequestTrace:
    """Return the trace of a request that has ended."""
    rng = random.Random(seed)
    trace = RequestTrace(CallRecorder(), None, f"{new_trace_number(rng):032x}", {}, rng)
    trace.ended = trace.began
    return trace
