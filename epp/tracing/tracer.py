"""Begins the traces of requests, and hands them over to the export thread when they have ended."""

import random
from collections.abc import Callable, Mapping
from time import perf_counter
from types import MappingProxyType
from typing import Final, NamedTuple

from epp.tracing.recording import CallRecorder
from epp.tracing.request_trace import RequestTrace
from epp.tracing.sampling import Sampler
from epp.tracing.trace_context import (
    TRACEPARENT,
    TRACESTATE,
    new_span_id,
    new_trace_number,
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
NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


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

    @property
    def is_recording(self) -> bool:
        """Whether traces are recorded."""
        return self._export is not None

    def begin(
        self, headers: Mapping[str, str], gateway: Mapping[str, str] = NO_HEADERS
    ) -> tuple[RequestTrace | None, Propagated]:
        """Begin the trace of a request.

        Args:
            headers: The request's headers by lower-case name.
            gateway: The gRPC headers of its stream. A gateway that traces names its span there,
                which is in the caller's trace, if the caller has one.

        Returns:
            The trace, None if the request is not sampled; and what to change in its headers on the
            way to the model server.
        """
        rng = self._rng
        if TRACEPARENT in gateway and (parent := parent_of(gateway)) is not None:
            headers = gateway
        else:
            parent = parent_of(headers)
        if parent is not None:
            if self._export is None or not self._sampler.samples(parent):
                return None, UNCHANGED
            trace = RequestTrace(self.recorder, parent, parent.trace_id, headers, rng)
            return trace, Propagated(trace.traceparent)
        number = new_trace_number(rng)
        is_sampled = self._sampler.begins(number)
        stale = (TRACESTATE,) if TRACESTATE in headers else ()  # of an invalid parent (§3.3)
        if not is_sampled or self._export is None:
            made = traceparent(f"{number:032x}", new_span_id(rng), is_sampled=is_sampled)
            return None, Propagated(made, stale)
        trace = RequestTrace(self.recorder, None, f"{number:032x}", headers, rng)
        return trace, Propagated(trace.traceparent, stale)

    def finish(self, trace: RequestTrace) -> None:
        """Export a trace whose request has ended."""
        trace.ended = perf_counter()
        if self._export is not None:
            self._export(trace)
