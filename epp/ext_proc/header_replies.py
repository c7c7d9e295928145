"""Replies that change headers: the one that routes a request, the one to response headers."""

from collections.abc import Mapping
from math import ceil

from epp.ext_proc import control_headers, processing_response
from epp.ext_proc.gateway_metadata import DEFAULT, GatewayAbilities
from epp.ext_proc.plugin_headers import sendable
from epp.ext_proc.response_body import ResponseBody
from epp.ext_proc.response_head import LazyResponseHead
from epp.ext_proc.settings import ExtProcSettings
from epp.request_control import ResponseSource, RoutedRequest, fallbacks
from epp.tracing import TRACEPARENT, UNCHANGED, Propagated

_HEDGE = "x-envoy-hedge-on-per-try-timeout"
_HEDGE_MILLISECONDS = "x-envoy-upstream-rq-per-try-timeout-ms"


def routing_reply(
    routed: RoutedRequest,
    headers: Mapping[str, str],
    settings: ExtProcSettings,
    *,
    request_id: str,
    is_new_id: bool,
    on_body: bool,
    gateway: GatewayAbilities = DEFAULT,
    propagated: Propagated = UNCHANGED,
) -> bytes:
    """Return the ProcessingResponse that routes a request.

    Args:
        routed: The request with its decision.
        headers: The request's headers by lower-case name.
        settings: Which headers to remove and to add.
        request_id: Id of the request.
        is_new_id: Whether the request came without an id, so that its id must be set.
        on_body: Whether to reply to the body message (a buffered body), not the headers message.
        gateway: What the gateway can do; endpoints after the picked one are for retries.
        propagated: Trace headers to set and to remove.
    """
    decision, body = routed.decision, routed.body
    address, wanted = decision.destination, decision.request_headers
    hedge_seconds: float | None = None
    if not settings.destination_list:
        address = address.partition(",")[0]
    elif gateway.max_destinations > 1:
        others = fallbacks(decision, gateway.max_destinations - 1)
        address = ",".join([address, *[each.address for each in others]])
        if gateway.can_hedge and routed.request.stream:
            hedge_seconds = routed.hedge_seconds(len(others))
    if settings.keep_control_headers:
        names = control_headers.removed_when_forwarding(settings.ignored_client_headers)
        removed = control_headers.present(headers, names)
    else:
        removed = control_headers.present(headers)
    scores = decision.scores
    traceparent = propagated.traceparent
    if propagated.removed:
        removed += propagated.removed
    plain = body is None and not wanted and scores is None and not is_new_id
    if plain and hedge_seconds is None:
        return processing_response.routed(
            address, on_body=on_body, removed=removed, traceparent=traceparent
        )
    changes: dict[str, str | None] = dict.fromkeys(removed)
    if is_new_id:
        changes[processing_response.REQUEST_ID] = request_id
    if traceparent:
        changes[TRACEPARENT] = traceparent
    if hedge_seconds is not None:
        changes[_HEDGE] = "true"
        changes[_HEDGE_MILLISECONDS] = str(ceil(hedge_seconds * 1e3))
    if wanted:
        changes |= sendable(wanted, request_id)
    if body is not None and processing_response.CONTENT_LENGTH in headers:
        # Envoy compares it with a buffered body and refuses another length; where bodies stream it
        # removes the header, unless allow_content_length_header is set.
        changes[processing_response.CONTENT_LENGTH] = str(len(body))
    return processing_response.routed_anew(
        address, on_body=on_body, headers=changes, body=body, scores=scores
    )


def response_headers_reply(
    routed: RoutedRequest,
    body: ResponseBody | None,
    head: LazyResponseHead,
    served: str,
    request_id: str,
) -> bytes:
    """Return the ProcessingResponse that lets response headers pass.

    Args:
        routed: The request; its response is recorded.
        body: Prepared here to read the response; None if Envoy does not send it.
        head: Its headers; at least the status is read.
        served: The ``ip:port`` that the gateway reports as the server; "" if it reports none.
        request_id: Id of the request, for the log.
    """
    status = head.status
    if routed.response_source is ResponseSource.UNKNOWN and head.is_overloaded:
        routed.response_source = ResponseSource.GATEWAY
    reads_body = body is not None and body.is_needed
    if not (reads_body or routed.wants_response_headers):
        routed.response_started(status)
        return processing_response.CONTINUE_RESPONSE_HEADERS
    headers = head.headers
    added = routed.response_started(status, headers, served)
    changes = sendable(added, request_id) if added else {}
    if body is None or not reads_body:
        return processing_response.passed_response_headers(changes)
    body.watch(headers)
    if processing_response.CONTENT_LENGTH in headers and body.is_length_unknown:
        changes[processing_response.CONTENT_LENGTH] = None
    return processing_response.passed_response_headers(changes, asks_for_body=body.is_unrequested)
