"""Records a request in its trace: names, numbers and outcome, but no content.

A trace keeps references to the result of scheduling, but none to the request: a prompt may be
large, and the trace waits for its export.
"""

from time import perf_counter

import structlog

from epp.observability import cut
from epp.outlier_detection import SERVER_ERROR
from epp.request_control import EndCause, RoutedRequest
from epp.tracing import Attribute, RequestTrace

_FAILED = frozenset({EndCause.ERROR, EndCause.EVICTED, EndCause.TIMED_OUT})

_log = structlog.get_logger(__name__)


def take_decision(trace: RequestTrace, routed: RoutedRequest) -> None:
    """Record that the request is sent on."""
    trace.decided = perf_counter()
    decision, queued = routed.decision, routed.queued
    trace.result = result = decision.result
    trace.scores = {name: each.scores for name, each in result.profiles.items()}
    if queued is not None and queued.has_waited:
        trace.queued_seconds = decision.decided_at - queued.enqueued_at


def take_end(
    trace: RequestTrace, request_id: str, routed: RoutedRequest | None, cause: EndCause
) -> None:
    """Record the end of the request.

    Args:
        trace: The request's trace.
        request_id: Id of the request.
        routed: The request; None if it was not sent on.
        cause: How it ended.
    """
    trace.request_id = cut(request_id)
    trace.attributes["llm_d.epp.outcome"] = cause.value
    if cause in _FAILED:
        trace.error = trace.error or f"the request ended with the outcome {cause.value}"
    if routed is None:
        return
    try:
        _take_request(trace, routed)
        trace.upstream = _upstream(routed)
    except Exception as error:  # a plugin may have changed the request's fields
        _log.error("trace incomplete", request_id=request_id, exc_info=error)
    status = routed.status
    if status is not None:
        trace.attributes.setdefault("http.response.status_code", status)
        if status >= SERVER_ERROR:
            trace.error = trace.error or f"the model server answered with status {status}"


def _take_request(trace: RequestTrace, routed: RoutedRequest) -> None:
    request, about = routed.request, trace.attributes
    trace.model, trace.target_model = cut(request.model), cut(request.target_model)
    trace.priority = request.priority
    about["url.path"] = cut(request.path.partition("?")[0])
    about["http.request.body.size"] = request.body_bytes
    about["llm_d.epp.request.stream"] = request.stream
    about["llm_d.epp.fairness.id"] = cut(request.fairness_id)


def _upstream(routed: RoutedRequest) -> dict[str, Attribute]:
    """Return the attributes of the span of the model server."""
    decision, endpoint, usage = routed.decision, routed.endpoint, routed.usage
    host, _, port = endpoint.address.rpartition(":")
    about: dict[str, Attribute] = {
        "server.address": host.strip("[]"),
        "server.port": int(port),
        "llm_d.epp.endpoint.name": endpoint.name,
        "llm_d.epp.endpoint.waiting_requests": float(decision.waiting_requests),
        "llm_d.epp.endpoint.running_requests": float(decision.running_requests),
        "llm_d.epp.endpoint.kv_cache_usage": float(decision.kv_cache_usage),
    }
    if endpoint is not decision.endpoint:
        about["llm_d.epp.endpoint.chosen"] = decision.endpoint.name
    for profile, stage in decision.stages.items():
        about[f"llm_d.epp.stage.{profile}"] = stage.name
    if routed.status is not None:
        about["http.response.status_code"] = routed.status
    if usage is not None:
        about["gen_ai.usage.input_tokens"] = usage.prompt_tokens
        about["gen_ai.usage.output_tokens"] = usage.completion_tokens
        if usage.cached_tokens is not None:
            about["llm_d.epp.usage.cached_tokens"] = usage.cached_tokens
    return about
