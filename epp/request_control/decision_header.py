"""What a client may learn of its request: headers of the response, off by default."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from epp.request_control.routed_request import RoutedRequest

DECISION_HEADER: Final = "x-epp-decision"
REQUEST_ID_HEADER: Final = "x-request-id"


def decision_headers(routed: "RoutedRequest") -> Mapping[str, str | None]:
    """Return the request id, and the endpoint that serves with its score, margin and queue wait."""
    decision, queued = routed.decision, routed.queued
    profile = decision.result.profiles[decision.result.primary]
    picked = profile.endpoints[0]
    others = [each.score for each in profile.scored if each.endpoint is not picked.endpoint]
    margin = f";margin={picked.score - max(others):.4g}" if others else ""
    wait = decision.decided_at - queued.enqueued_at if queued is not None else 0.0
    text = f"{routed.endpoint.name};score={picked.score:.4g}{margin};queued={wait:.3f}"
    return {DECISION_HEADER: text, REQUEST_ID_HEADER: routed.request.request_id}
