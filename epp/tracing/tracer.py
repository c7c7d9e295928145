"""Begins the traces of requests, and hands them over to the export thread when they have ended."""

import random
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Final, NamedTuple

from epp.tracing.recording import CallRecorder
from epp.tracing.request_trace import RequestTrace
from epp.tracing.sampling import Sampler
from epp.tracing.trace_context import (
    TRACESTATE,
    new_span_id,
    new_trace_id,
    parent_of,
    traceparent,
)


class Propagated(NamedTuple):
    """The trace headers of a request to a model server."""

    traceparent: str = ""
    """The header to set; "" to let the client's pass."""
    removed: tuple[str, ...] = ()
    """Headers to remove."""


UNCHANGED: Final = Propagated()


class Tracer:
    """Traces the requests of a process.

    Args:
        sampler: Decides which requests are traced.
        export: Takes the trace of a request that has ended, without blocking; None to record none,
            and only send ``traceparent`` to the model servers.
        rng: Source of ids; None for a new one.
    """

    def __init__(
        self,
        sampler: Sampler,
        export: Callable[[RequestTrace], None] | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.recorder = CallRecorder()
        """Records plugin calls."""
        self._sampler = sampler
        self._export = export
        self._rng = rng or random.Random()  # noqa: S311 - ids must be unique, not secret

    def begin(self, headers: Mapping[str, str]) -> RequestTrace | None:
        """Return the trace of a request; None if it is not sampled.

        Args:
            headers: Its headers by lower-case name.
        """
        if self._export is None:
            return None
        parent = parent_of(headers)
        trace_id = new_trace_id(self._rng) if parent is None else parent.trace_id
        if not self._sampler.samples(parent, trace_id):
            return None
        return RequestTrace(self.recorder, parent, trace_id, headers, self._rng)

    def propagated(self, headers: Mapping[str, str], trace: RequestTrace | None) -> Propagated:
        """Return what to change in a request's headers on the way to the model server.

        Args:
            headers: The request's headers by lower-case name.
            trace: Its trace; None if it is not sampled.
        """
        if trace is not None:
            return Propagated(trace.traceparent, _stale(headers) if trace.parent is None else ())
        if parent_of(headers) is not None:
            return UNCHANGED
        trace_id = new_trace_id(self._rng)
        # The servers below must not record what is not recorded here.
        is_sampled = self._export is None and self._sampler.samples(None, trace_id)
        made = traceparent(trace_id, new_span_id(self._rng), is_sampled=is_sampled)
        return Propagated(made, _stale(headers))

    def finish(self, trace: RequestTrace) -> None:
        """Export a trace whose request has ended."""
        trace.ended = perf_counter()
        if self._export is not None:
            self._export(trace)


def _stale(headers: Mapping[str, str]) -> tuple[str, ...]:
    """Return the headers that belong to an invalid ``traceparent`` (§3.3)."""
    return (TRACESTATE,) if TRACESTATE in headers else ()
