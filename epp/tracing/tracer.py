"""Begins the traces of requests, and hands them over to the export thread when they have ended."""

import random
from collections.abc import Callable, Mapping
from time import perf_counter

from epp.tracing.recording import CallRecorder
from epp.tracing.request_trace import RequestTrace
from epp.tracing.sampling import Sampler
from epp.tracing.trace_context import new_span_id, new_trace_id, parent_of, traceparent


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

    def traceparent_of_untraced(self, headers: Mapping[str, str]) -> str:
        """Return the ``traceparent`` for the model server of a request without a trace.

        Args:
            headers: The request's headers by lower-case name.

        Returns:
            A new one; "" to let the client's pass.
        """
        if parent_of(headers) is not None:
            return ""
        trace_id = new_trace_id(self._rng)
        # The servers below must not record what is not recorded here.
        is_sampled = self._export is None and self._sampler.samples(None, trace_id)
        return traceparent(trace_id, new_span_id(self._rng), is_sampled=is_sampled)

    def finish(self, trace: RequestTrace) -> None:
        """Export a trace whose request has ended."""
        trace.ended = perf_counter()
        if self._export is not None:
            self._export(trace)
