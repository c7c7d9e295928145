"""A span, and the spans of one trace while they are made."""

import random
from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple

from epp.tracing.request_trace import Attribute, RequestTrace
from epp.tracing.trace_context import new_span_id


class SpanKind(IntEnum):
    """``Span.SpanKind`` of OTLP."""

    INTERNAL = 1
    SERVER = 2
    CLIENT = 3


class SpanEvent(NamedTuple):
    """Something that happened in a span."""

    name: str
    at_ns: int


class Span(NamedTuple):
    """A span that has ended; times are nanoseconds since 1970."""

    trace_id: str
    span_id: str
    parent_id: str
    """"" for the root."""
    is_parent_remote: bool
    """Whether the parent is a span of another process."""
    state: str
    """The caller's ``tracestate``."""
    name: str
    kind: SpanKind
    began_ns: int
    ended_ns: int
    attributes: Mapping[str, Attribute]
    events: tuple[SpanEvent, ...] = ()
    error: str = ""
    """Description of the status ``Error``; "" for the status ``Unset``."""


class SpanTree:
    """The spans of one trace.

    Args:
        trace: The trace.
        rng: Source of span ids.
    """

    def __init__(self, trace: RequestTrace, rng: random.Random) -> None:
        self.spans: list[Span] = []
        self._trace = trace
        self._rng = rng

    def ns(self, seconds: float) -> int:
        """Return a time of the trace in nanoseconds since 1970."""
        return self._trace.began_ns + round((seconds - self._trace.began) * 1e9)

    def add(
        self,
        parent_id: str,
        name: str,
        began: float,
        ended: float,
        attributes: Mapping[str, Attribute],
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        span_id: str = "",
        is_parent_remote: bool = False,
        events: tuple[tuple[str, float], ...] = (),
        error: str = "",
    ) -> str:
        """Add a span; return its id.

        Args:
            parent_id: Id of its parent; "" for none.
            name: Name of the span.
            began: When it began, in seconds of the trace's clock.
            ended: When it ended, likewise.
            attributes: Attributes of the span.
            kind: Kind of the span.
            span_id: Its id; "" for a new one.
            is_parent_remote: Whether the parent is a span of another process.
            events: Name and time of what happened in it.
            error: Why it failed; "" if it did not.
        """
        span_id = span_id or new_span_id(self._rng)
        self.spans.append(
            Span(
                self._trace.trace_id,
                span_id,
                parent_id,
                is_parent_remote,
                self._trace.state,
                name,
                kind,
                self.ns(began),
                max(self.ns(began), self.ns(ended)),
                attributes,
                tuple(SpanEvent(event, self.ns(at)) for event, at in events),
                error,
            )
        )
        return span_id
