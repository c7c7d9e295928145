"""Requests that are answered with an error: the response, its metrics and its log line."""

from collections.abc import Callable, Mapping, Sequence

import structlog

from epp.observability import CanonicalLine, FaultLog, Metrics
from epp.request_control.dry_runs import DryRuns
from epp.request_control.errors import InternalError, LimitError, RequestError
from epp.request_control.plugins import EndCause
from epp.request_control.policies import DEFAULT_FAIRNESS_ID, OutcomeWatch, fairness_id
from epp.request_control.prepared_request import PreparedRequest, RawRequest
from epp.request_control.recording import DecisionRecorder
from epp.request_control.request_log import NO_FIELDS, refused_line
from epp.scheduling import Endpoint, LLMRequest, without_request
from epp.tracing import RequestTrace

_HANGS_AFTER_SECONDS = 5.0
"""A request that filters leave without an endpoint for this long counts as refused. A shorter wait
may be what the filters intend."""
_STATUSES = range(400, 600)
"""HTTP statuses of errors."""


class Refusals:
    """Turns any error of a request into its error response, and reports it once."""

    def __init__(
        self,
        metrics: Metrics,
        clock: Callable[[], float],
        outcomes: OutcomeWatch | None = None,
        dry_runs: DryRuns | None = None,
        log_fields: Mapping[str, str] = NO_FIELDS,
        *,
        recorder: DecisionRecorder | None = None,
    ) -> None:
        self._metrics = metrics
        self._clock = clock
        self._outcomes = outcomes
        self._dry_runs = dry_runs
        self._recorder = recorder
        self._log = structlog.get_logger(__name__)
        self._line = CanonicalLine("request refused", logger=__name__, **log_fields)
        self._faults = FaultLog()

    def refused(
        self,
        error: Exception,
        *,
        request_id: str,
        request: LLMRequest | None,
        headers: Mapping[str, str],
        received_at: float,
        raw: RawRequest | None = None,
        candidates: Sequence[Endpoint] = (),
        trace: RequestTrace | None = None,
    ) -> RequestError:
        """Count and log a request that ends with ``error``; return the error to answer with.

        Args:
            error: The error; anything but a valid RequestError is a fault of this EPP.
            request_id: Id of the HTTP request.
            request: The request; None if it could not be parsed.
            headers: Its headers by lower-case name.
            received_at: When its headers arrived, in seconds of the clock.
            raw: The request as it was received, for a dry run; None for no dry run.
            candidates: The endpoints of its last choice; empty if none was tried.
            trace: Its trace; None if it is not traced.
        """
        refusal = _as_request_error(error) or self.fault(error, request_id)
        self.count(refusal, request, headers)
        if self._outcomes is not None:
            self._outcomes.refused(refusal.status)
        if raw is not None and self._dry_runs is not None:
            self._dry_runs.judge(raw, refusal)
        if self._recorder is not None:
            path = headers.get(":path", "")
            self._recorder.refused(refusal, request_id, request, received_at, candidates, path=path)
        if trace is not None and request is not None:
            trace.describe(request)
        if self._line.enabled:
            seconds = self._clock() - received_at
            self._line.write(refused_line(refusal, request_id, request, seconds, trace))
        return refusal

    def refused_request(self, error: Exception, prepared: PreparedRequest) -> RequestError:
        """Call :meth:`refused` for a request that had to wait."""
        request = prepared.request
        return self.refused(
            error,
            request_id=request.request_id,
            request=request,
            headers=request.headers,
            received_at=prepared.received_at,
            raw=prepared.raw,
            candidates=prepared.candidates,
            trace=prepared.trace,
        )

    def held(self, error: RequestError, prepared: PreparedRequest) -> None:
        """Judge a request that ``error`` holds like a refused one, once it has waited long."""
        raw = prepared.raw
        if raw is None or self._dry_runs is None:
            return
        if self._clock() - prepared.received_at >= _HANGS_AFTER_SECONDS:
            prepared.raw = None  # once
            self._dry_runs.judge(raw, error)

    def count(
        self, error: RequestError, request: LLMRequest | None, headers: Mapping[str, str]
    ) -> None:
        """Count a request that ends with ``error``, without a log line.

        Args:
            error: The error to answer with.
            request: The request; None if it was not parsed.
            headers: Its headers by lower-case name.
        """
        model = request.model if request else ""
        target = request.target_model if request else ""
        flow = request.fairness_id if request else ""
        labels = (model, target, flow or fairness_id(headers), request.priority if request else 0)
        self._metrics.for_refusal(*labels).error(error.code)
        if isinstance(error, LimitError):
            self.count_limit(error.limit)

    def count_limit(self, limit: str) -> None:
        """Count a stream that reached ``limit``, without a log line."""
        self._metrics.limits_exceeded.labels(limit).inc()

    def count_fault(self) -> None:
        """Count an exception that became a 500."""
        self._metrics.internal_faults.inc()

    def abandoned(self, prepared: PreparedRequest, cause: EndCause) -> None:
        """Log a request whose client left before the decision."""
        request, trace = prepared.request, prepared.trace
        if self._recorder is not None:
            self._recorder.abandoned(request, cause, prepared.received_at)
        traced = {}
        if trace is not None:
            trace.describe(request)
            traced = {"trace_id": trace.trace_id}
        self._log.info(
            "request abandoned before it was decided",
            request_id=request.request_id,
            model=request.model,
            target_model=request.target_model,
            duration_seconds=round(self._clock() - prepared.received_at, 6),
            outcome=cause.value,
            **_flow(request),
            **traced,
        )

    def fault(self, error: Exception, request_id: str) -> InternalError:
        """Count and log an unexpected exception; return the error to answer with."""
        self._log.error(
            "request failed inside the EPP",
            request_id=request_id,
            error=without_request(error),
            exc_info=self._faults.traceback_of(error),
        )
        self._metrics.internal_faults.inc()
        fault = InternalError(
            f"the endpoint picker failed on this request; its log names request {request_id}"
        )
        fault.__cause__ = error
        return fault


def _flow(request: LLMRequest) -> dict[str, str | int]:
    """Return priority and fairness id as the line of a finished request has them."""
    facts: dict[str, str | int] = {}
    if request.priority:
        facts["priority"] = request.priority
    if request.fairness_id not in {"", DEFAULT_FAIRNESS_ID}:
        facts["fairness_id"] = request.fairness_id
    return facts


def _as_request_error(error: Exception) -> RequestError | None:
    """Return ``error`` if it may become a response; else add a note that says why it is not."""
    if not isinstance(error, RequestError):
        return None
    problem = _problem(error)
    if problem:
        error.add_note(problem)
        return None
    return error


def _problem(error: RequestError) -> str:
    # Plugins raise errors of their own classes, with arbitrary attributes.
    name = type(error).__name__
    if not isinstance(error.status, int) or error.status not in _STATUSES:
        return f"{name}.status must be a number from 400 to 599, not {error.status!r}"
    for field in ("code", "stage", "drop_reason"):
        value = getattr(error, field)
        if not isinstance(value, str) or not value.isprintable():
            return f"{name}.{field} must be printable text, not {value!r}"
    return ""
