"""The canonical log line: one line per request, written at its end.

Values that clients choose are cut to a maximum length here.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from epp.flow_control import QueuedRequest
from epp.observability import MAX_CHARS, cut
from epp.request_control.decision import Decision
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
        error: The error.
        request_id: Id of the HTTP request.
        request: The request; None if it could not be parsed.
        duration_seconds: Since its headers arrived.
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
    age, received_at, stages = decision.metrics_age_seconds, decision.received_at, decision.stages
    failures, usage = routed.state.read(PRODUCER_FAILURES), routed.usage
    request_id, model, target_model = request.request_id, request.model, request.target_model
    fairness_id = request.fairness_id
    if fairness_id == DEFAULT_FAIRNESS_ID:
        fairness_id = ""
    # One test, because nearly all are short: cutting each costs 0.3 us.
    if len(request_id) + len(model) + len(target_model) + len(fairness_id) > MAX_CHARS:
        request_id, model, target_model = cut(request_id), cut(model), cut(target_model)
        fairness_id = cut(fairness_id)
    return RequestFinished(  # by position: keywords take twice as long
        request_id,
        model,
        target_model,
        endpoint.name,
        endpoint.address,
        decision.waiting_requests,
        decision.running_requests,
        # Rounded to 4 and 6 places; round(x, 4) takes three times as long, and compiled, round()
        # alone 600 instructions.
        int(decision.kv_cache_usage * 1e4 + 0.5) / 1e4,
        None if age is None else int(age * 1e4 + 0.5) / 1e4,
        int((decision.decided_at - received_at) * 1e6 + 0.5) / 1e6,
        int((now - received_at) * 1e6 + 0.5) / 1e6,
        request.body_bytes,
        request.stream,
        routed.status,
        cause._value_,  # ``value`` is a property in Python
        decision.is_forced,
        request.priority,
        fairness_id or None,
        None if routed.trace is None else routed.trace.trace_id,
        None if routed.queued is None else _queued_seconds(routed.queued, decision),
        usage.prompt_tokens if usage else None,
        usage.completion_tokens if usage else None,
        {name: each.name for name, each in stages.items()} if stages else None,
        {each.producer: each.reason for each in failures} if failures else None,
        decision.shadow or None,
    )


def _queued_seconds(queued: QueuedRequest, decision: Decision) -> float | None:
    return (
        round((decision.decided_at - queued.enqueued_at) * 1e6) / 1e6 if queued.has_waited else None
    )
