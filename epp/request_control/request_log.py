"""The canonical log line: one line per request, written at its end.

Values that clients choose are cut to a maximum length here.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from epp.observability import MAX_CHARS, cut
from epp.request_control.errors import RequestError
from epp.request_control.plugins import PRODUCER_FAILURES, EndCause
from epp.request_control.policies import DEFAULT_FAIRNESS_ID
from epp.request_control.request_lines import RequestFinished, RequestRefused
from epp.request_control.routed_request import RoutedRequest
from epp.scheduling import LLMRequest
from epp.tracing import RequestTrace

NO_FIELDS: Final[Mapping[str, str]] = MappingProxyType({})
"""No fields in addition to those of the lines below."""


def refused_line(
    error: RequestError,
    request_id: str,
    request: LLMRequest | None,
    duration_seconds: float,
    trace: RequestTrace | None = None,
) -> RequestRefused:
    """Return the line of a request that is answered with ``error``.

    Args:
        error: The answer.
        request_id: Id of the HTTP request.
        request: The request; None if it could not be parsed.
        duration_seconds: Since its headers came.
        trace: Its trace; None if it is not traced.
    """
    fairness_id = request.fairness_id if request else DEFAULT_FAIRNESS_ID
    return RequestRefused(
        request_id=cut(request_id),
        model=cut(request.model) if request else "",
        target_model=cut(request.target_model) if request else "",
        status=error.status,
        stage=error.stage,
        reason=error.drop_reason or error.code,
        error=cut(str(error)),
        duration_seconds=round(duration_seconds * 1e6) / 1e6,
        outcome=EndCause.REFUSED.value,
        priority=request.priority if request else 0,
        fairness_id=cut(fairness_id) or None if fairness_id != DEFAULT_FAIRNESS_ID else None,
        trace_id=None if trace is None else trace.trace_id,
    )


def finished_line(routed: RoutedRequest, cause: EndCause, now: float) -> RequestFinished:
    """Return the line of ``routed``, which ended at ``now``."""
    decision, request, endpoint = routed.decision, routed.request, routed.endpoint
    age, received_at = decision.metrics_age_seconds, decision.received_at
    failures, usage = routed.state.read(PRODUCER_FAILURES), routed.usage
    request_id, model, target_model = request.request_id, request.model, request.target_model
    fairness_id = request.fairness_id if request.fairness_id != DEFAULT_FAIRNESS_ID else ""
    # One test, as nearly all are short: cutting each costs 0.3 us.
    if len(request_id) + len(model) + len(target_model) + len(fairness_id) > MAX_CHARS:
        request_id, model, target_model = cut(request_id), cut(model), cut(target_model)
        fairness_id = cut(fairness_id)
    return RequestFinished(
        request_id=request_id,
        model=model,
        target_model=target_model,
        endpoint=endpoint.name,
        address=endpoint.address,
        waiting_requests=decision.waiting_requests,
        running_requests=decision.running_requests,
        # As round(x, 4) and round(x, 6), which take three times as long.
        kv_cache_usage=round(decision.kv_cache_usage * 1e4) / 1e4,
        metrics_age_seconds=None if age is None else round(age * 1e4) / 1e4,
        decision_seconds=round((decision.decided_at - received_at) * 1e6) / 1e6,
        duration_seconds=round((now - received_at) * 1e6) / 1e6,
        body_bytes=request.body_bytes,
        stream=request.stream,
        status=routed.status,
        outcome=cause.value,
        forced=decision.is_forced,
        priority=request.priority,
        fairness_id=fairness_id or None,
        trace_id=None if routed.trace is None else routed.trace.trace_id,
        queued_seconds=_queued_seconds(routed),
        prompt_tokens=usage.prompt_tokens if usage else None,
        completion_tokens=usage.completion_tokens if usage else None,
        stages={profile: each.name for profile, each in decision.stages.items()} or None,
        failed_producers={each.producer: each.reason for each in failures} if failures else None,
        shadow=decision.shadow or None,
    )


def _queued_seconds(routed: RoutedRequest) -> float | None:
    queued = routed.queued
    if queued is None or not queued.has_waited:
        return None
    return round((routed.decision.decided_at - queued.enqueued_at) * 1e6) / 1e6
