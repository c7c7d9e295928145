"""Response headers that tell a client how its request was routed; off by default."""

from collections.abc import Mapping
from typing import Final

from epp.flow_control import QueuedRequest
from epp.request_control.decision import Decision
from epp.scheduling import Endpoint

DECISION_HEADER: Final = "x-epp-decision"
REQUEST_ID_HEADER: Final = "x-request-id"


def decision_headers(
    decision: Decision, endpoint: Endpoint, queued: QueuedRequest | None
) -> Mapping[str, str | None]:
    """Return the request id, and the endpoint that serves with its score, margin and queue wait.

    A forced decision has no scores; ``forced`` takes their place.

    Args:
        decision: The decision.
        endpoint: The endpoint that serves.
        queued: The request in flow control; None if it was not queued there.
    """
    why = "forced" if decision.is_forced else _scores(decision)
    wait = decision.decided_at - queued.enqueued_at if queued is not None else 0.0
    text = f"{endpoint.name};{why};queued={wait:.3f}"
    return {DECISION_HEADER: text, REQUEST_ID_HEADER: decision.request.request_id}


def _scores(decision: Decision) -> str:
    profile = decision.result.profiles[decision.result.primary]
    picked = profile.endpoints[0]
    others = [each.score for each in profile.scored if each.endpoint is not picked.endpoint]
    margin = f";margin={picked.score - max(others):.4g}" if others else ""
    return f"score={picked.score:.4g}{margin}"
