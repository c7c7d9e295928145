"""Checks of the processing mode: which parts of a message Envoy sends to the EPP, and how."""

from collections.abc import Iterator

from epp.doctor.check import Check
from epp.doctor.findings import Finding, error, set_to, warning
from epp.doctor.gateway import Gateway
from epp.doctor.routes import FULL_DUPLEX, RouteUse
from epp.doctor.tree import ConfigNode

DEFAULT_BUFFER_BYTES = 2**20
ENOUGH_BUFFER_BYTES = 2**25


def _request_headers(gateway: Gateway) -> Iterator[Finding]:
    for use in gateway.uses:
        if not use.sends("request_header"):
            yield error(
                _mode(use, "request_header"),
                "request_header_mode: SKIP",
                "The EPP learns neither path nor headers and cannot reply with an endpoint",
                "Set processing_mode.request_header_mode: SEND",
                set_to(_mode(use, "request_header"), "SEND"),
            )


def _request_body(gateway: Gateway) -> Iterator[Finding]:
    for use in gateway.uses:
        where, mode = _mode(use, "request_body"), use.body_mode("request")
        mend = f"Set processing_mode.request_body_mode: {FULL_DUPLEX} (with request_trailer_mode:"
        mend += " SEND) or BUFFERED"
        fix = set_to(where, FULL_DUPLEX)
        if mode == "NONE":
            yield warning(
                where,
                "request_body_mode: NONE",
                "Endpoints are picked by the headers alone: no model, no prefix, no prompt size",
                mend,
            )
        elif mode == "STREAMED" and not _without_waiting(use):
            yield error(
                where,
                "request_body_mode: STREAMED",
                "Envoy waits for the reply to the headers before it sends the body, on which that"
                " reply depends; the EPP refuses such requests with a 500",
                mend,
                fix,
            )
        elif mode == "STREAMED":
            yield warning(
                where,
                "request_body_mode: STREAMED",
                f"Each chunk is answered on its own, and a body above Envoy's buffer limit never"
                f" becomes whole; it has no advantage over {FULL_DUPLEX}",
                mend,
                fix,
            )
        elif mode == "BUFFERED_PARTIAL":
            yield error(
                where,
                "request_body_mode: BUFFERED_PARTIAL",
                "A body above the buffer limit reaches the EPP cut off: it is refused",
                mend,
                fix,
            )
        elif mode == "GRPC":
            yield error(
                where, "request_body_mode: GRPC", "The EPP refuses this with a 500", mend, fix
            )


def _response_body(gateway: Gateway) -> Iterator[Finding]:
    for use in gateway.uses:
        where, mode = _mode(use, "response_body"), use.body_mode("response")
        mend = "Set processing_mode.response_body_mode: NONE (with response_trailer_mode: SEND) or"
        mend += f" {FULL_DUPLEX}"
        fix = set_to(where, "NONE")
        if mode in {"BUFFERED", "BUFFERED_PARTIAL"}:
            yield error(
                where,
                f"response_body_mode: {mode}",
                "Clients get no token before the last, and responses above the buffer limit fail",
                mend,
                fix,
            )
        elif mode == "GRPC":
            yield error(
                where,
                "response_body_mode: GRPC",
                "The EPP does not reply to such bodies",
                mend,
                fix,
            )
        elif mode == "STREAMED":
            yield warning(
                where,
                "response_body_mode: STREAMED",
                "Envoy holds each chunk until the EPP has replied to it",
                mend,
                fix,
            )


def _request_trailers(gateway: Gateway) -> Iterator[Finding]:
    for use in gateway.uses:
        if use.streams_request and not use.sends("request_trailer"):
            yield error(
                _mode(use, "request_trailer"),
                f"request_body_mode: {FULL_DUPLEX} without request trailers",
                "Envoy refuses this; a request that ends with trailers would never end for the EPP",
                "Set processing_mode.request_trailer_mode: SEND",
                set_to(_mode(use, "request_trailer"), "SEND"),
            )


def _response_trailers(gateway: Gateway) -> Iterator[Finding]:
    for use in gateway.uses:
        if use.sends("response_trailer"):
            continue
        mend = "Set processing_mode.response_trailer_mode: SEND"
        where = _mode(use, "response_trailer")
        fix = set_to(where, "SEND")
        if use.body_mode("response") == FULL_DUPLEX:
            yield error(
                where,
                f"response_body_mode: {FULL_DUPLEX} without response trailers",
                "Envoy refuses this; responses that end with trailers would never end for the EPP",
                mend,
                fix,
            )
        elif use.streams_request and use.body_mode("response") == "NONE":
            yield error(
                where,
                f"response_body_mode: NONE without response trailers, and requests {FULL_DUPLEX}",
                "Envoy ends the stream at the response's first byte: the EPP takes the request for"
                " done, and its counts of requests in flight are too low",
                mend,
                fix,
            )


def _response_headers(gateway: Gateway) -> Iterator[Finding]:
    for use in gateway.uses:
        if not use.sends("response_header"):
            yield warning(
                _mode(use, "response_header"),
                "response_header_mode: SKIP",
                "The EPP learns neither the status, nor the time to the first token, nor which"
                " endpoint served",
                "Set processing_mode.response_header_mode: SEND",
                set_to(_mode(use, "response_header"), "SEND"),
            )


def _buffer_limit(gateway: Gateway) -> Iterator[Finding]:
    for use in gateway.uses:
        mode = use.body_mode("request")
        is_ahead = mode == "STREAMED" and _without_waiting(use)
        if not is_ahead and mode not in {"BUFFERED", "BUFFERED_PARTIAL"}:
            continue
        limit = _buffer_limit_of(use)
        if limit.number(DEFAULT_BUFFER_BYTES) > DEFAULT_BUFFER_BYTES:
            continue
        said = f"the limit is {f'{limit.number(0)} bytes' if limit else 'not set, so 1 MiB'}"
        mend = "Set request_body_buffer_limit of the route, or per_connection_buffer_limit_bytes"
        mend += " of the listener, to 33554432 (32 MiB)"
        if is_ahead:
            yield error(
                limit.path,
                f"bodies are STREAMED ahead of the reply, {said}",
                "Envoy reads no further when as much waits for replies, and the EPP replies when"
                " the body is whole: larger prompts, such as those with images, hang until"
                " message_timeout ends them with 504",
                f"Set processing_mode.request_body_mode: {FULL_DUPLEX} (with request_trailer_mode:"
                f" SEND). {mend}, only moves the limit",
                set_to(_mode(use, "request_body"), FULL_DUPLEX),
            )
        else:
            yield error(
                limit.path,
                f"bodies are buffered whole, {said}",
                "Larger prompts, such as those with images, are answered with 413",
                mend,
                set_to(_buffer_limit_to_set(use, limit), ENOUGH_BUFFER_BYTES),
            )


def _buffer_limit_of(use: RouteUse) -> ConfigNode:
    """Return the effective buffer limit, or the listener's absent field."""
    if use.target is not None:
        for level in (use.target.route, use.target.host):
            if level.get("request_body_buffer_limit"):
                return level.get("request_body_buffer_limit")
    return use.manager.listener.get("per_connection_buffer_limit_bytes")


def _buffer_limit_to_set(use: RouteUse, limit: ConfigNode) -> str:
    """Return the path of the limit in effect, else of the route's, which affects requests only."""
    if limit or use.target is None:
        return limit.path
    return use.target.route.get("request_body_buffer_limit").path


def _mode(use: RouteUse, part: str) -> str:
    return use.get("processing_mode", f"{part}_mode").path


def _without_waiting(use: RouteUse) -> bool:
    return use.config.get("send_body_without_waiting_for_header_response").flag()


CHECKS = (
    Check("request-headers", _request_headers, "request headers are sent"),
    Check("request-body", _request_body, "request bodies are sent in a mode that the EPP takes"),
    Check("request-trailers", _request_trailers, "request trailers are sent where they must be"),
    Check("response-headers", _response_headers, "response headers are sent"),
    Check("response-body", _response_body, "response bodies are not held up"),
    Check("response-trailers", _response_trailers, "the end of a response reaches the EPP"),
    Check("buffer-limit", _buffer_limit, "large prompts fit into Envoy's buffers"),
)
