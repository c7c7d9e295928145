"""The facts of one sampled request, from which a thread makes spans (:mod:`.spans`)."""

import random
from collections.abc import Mapping, Sequence
from time import perf_counter, time_ns

from epp.scheduling import (
    Endpoint,
    LLMRequest,
    SchedulerProfile,
    SchedulingResult,
    ScoreColumns,
)
from epp.tracing.recording import CallRecorder, PluginCall
from epp.tracing.trace_context import TraceParent, new_span_id, state_of, traceparent

Attribute = str | int | float | list[str] | list[float]
"""Value of an attribute of a span."""


class RequestTrace:
    """Facts about a sampled request, collected from its headers to the end of its stream.

    Times are seconds of ``perf_counter``; 0.0 for what has not happened.

    Args:
        recorder: Records the request's plugin calls.
        parent: The caller's span; None if this request begins the trace.
        trace_id: Id of the trace.
        headers: The request's headers by lower-case name.
        rng: Source of ids.
    """

    __slots__ = (
        "_is_step",
        "_recorder",
        "attributes",
        "began",
        "began_ns",
        "calls",
        "candidates",
        "choice_began",
        "choice_calls",
        "choices",
        "decided",
        "ended",
        "error",
        "model",
        "parent",
        "pool",
        "priority",
        "profiles",
        "queued_seconds",
        "received",
        "request_id",
        "responded",
        "result",
        "scores",
        "state",
        "target_model",
        "trace_id",
        "upstream",
        "upstream_id",
    )

    def __init__(
        self,
        recorder: CallRecorder,
        parent: TraceParent | None,
        trace_id: str,
        headers: Mapping[str, str],
        rng: random.Random,
    ) -> None:
        self._recorder = recorder
        self._is_step = False
        self.parent = parent
        self.trace_id = trace_id
        self.state = "" if parent is None else state_of(headers)
        self.upstream_id = new_span_id(rng)
        """Id of the span of the request to the model server."""
        self.began = perf_counter()
        self.began_ns = time_ns()
        """``began`` in nanoseconds since 1970."""
        self.received = 0.0
        """When the request was complete, so that its decision began."""
        self.choice_began = 0.0
        """When the last choice among endpoints began: a queued request may need several."""
        self.decided = 0.0
        """When the request was sent on or refused."""
        self.responded = 0.0
        """When the head of the response arrived."""
        self.ended = 0.0
        self.calls: list[PluginCall] = []
        self.choices = 0
        """Number of choices among endpoints so far."""
        self.choice_calls = 0
        """Index of the first call of the last choice."""
        self.pool = ""
        self.request_id = ""
        self.model = ""
        self.target_model = ""
        self.priority = 0
        self.queued_seconds = 0.0
        self.candidates = 0
        """Number of endpoints that the last choice was made from."""
        self.result: SchedulingResult | None = None
        """What the profiles have filtered, scored and picked; None if the request was refused."""
        self.scores: Mapping[str, ScoreColumns] = {}
        """The scorers' columns by profile: the result drops its own when the request is sent."""
        self.profiles: Mapping[str, SchedulerProfile] = {}
        """The profiles by name."""
        self.error = ""
        """Why the request failed; "" if it did not."""
        self.attributes: dict[str, Attribute] = {}
        """Attributes of the span of the whole request."""
        self.upstream: dict[str, Attribute] | None = None
        """Attributes of the span of the model server; None if the request was not sent on."""

    @property
    def traceparent(self) -> str:
        """The header for the model server."""
        return traceparent(self.trace_id, self.upstream_id, is_sampled=True)

    def begin_step(self) -> None:
        """Record plugin calls from now on."""
        self._recorder.calls = self.calls
        self._is_step = True

    def end_step(self) -> None:
        """Record no further calls: another request may be next."""
        self._recorder.calls = None
        self._is_step = False

    def begin_decision(self) -> None:
        """Begin the first step: the request is complete."""
        self.received = perf_counter()
        self.begin_step()

    def begin_response(self) -> None:
        """Record that the head of the response has arrived."""
        self.responded = perf_counter()

    def begin_choice(self) -> None:
        """Begin to choose among endpoints; calls of the previous choice are dropped."""
        if self.choices:
            del self.calls[self.choice_calls :]
        else:
            self.choice_calls = len(self.calls)
        self.choices += 1
        self.choice_began = perf_counter()
        self._recorder.calls = self.calls

    def end_choice(
        self, candidates: Sequence[Endpoint], profiles: Mapping[str, SchedulerProfile]
    ) -> None:
        """End the choice, in a step of its own or as a part of one.

        Args:
            candidates: The endpoints that it was made from.
            profiles: The profiles that made it, by name.
        """
        self.candidates = len(candidates)
        self.profiles = profiles
        if not self._is_step:
            self._recorder.calls = None

    def failed(self, status: int, reason: str, error: str) -> None:
        """Record that the request is answered with an error.

        Args:
            status: Status of the response.
            reason: Why, from a closed set.
            error: The message in the response.
        """
        self.error = error
        self.attributes["http.response.status_code"] = status
        self.attributes["error.type"] = reason
        if not self.decided:
            self.decided = perf_counter()

    def describe(self, request: LLMRequest) -> None:
        """Take the names of ``request``, but not its content."""
        self.request_id = request.request_id
        self.model = request.model
        self.target_model = request.target_model
        self.priority = request.priority
