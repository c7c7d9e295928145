"""Error bodies in the form that the client's library expects.

The path selects the form, as it selects the parser: the Anthropic API has an error object of its
own, and its clients read type, message and id only there.
"""

from typing import NamedTuple

import msgspec

from epp.ext_proc.settings import ErrorBody
from epp.observability import MAX_RESPONSE_CHARS, printable
from epp.request_control import RequestError

_ANTHROPIC_PATHS = ("/messages", "/messages/count_tokens")
_ANTHROPIC_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_SERVER_ERROR = 500


class ErrorResponse(NamedTuple):
    """An error response."""

    body: bytes
    content_type: str
    id_header: str
    """Header in which the client's library looks for the request id; "" for none."""


def error_response(
    error: RequestError, request_id: str, path: str, form: ErrorBody
) -> ErrorResponse:
    """Return the error response to a request for ``path``, which may contain a query.

    Message and request id are cut to bounded lengths.
    """
    message = printable(str(error), MAX_RESPONSE_CHARS)
    shown_id = printable(request_id)
    if form == "text":
        return ErrorResponse(_text(error, message, shown_id), "text/plain", "")
    if path.partition("?")[0].endswith(_ANTHROPIC_PATHS):
        return ErrorResponse(_anthropic(error, message, shown_id), "application/json", "request-id")
    return ErrorResponse(_openai(error, message, shown_id), "application/json", "x-request-id")


def _openai(error: RequestError, message: str, request_id: str) -> bytes:
    return msgspec.json.encode(
        {
            "error": {
                "message": message,
                "type": error.code,
                "code": error.status,
                "stage": error.stage,
                "request_id": request_id,
            }
        }
    )


def _anthropic(error: RequestError, message: str, request_id: str) -> bytes:
    other = "api_error" if error.status >= _SERVER_ERROR else "invalid_request_error"
    return msgspec.json.encode(
        {
            "type": "error",
            "error": {
                "type": _ANTHROPIC_KINDS.get(error.status, other),
                "message": message,
                "details": {"error_code": error.drop_reason or error.code, "stage": error.stage},
            },
            "request_id": request_id,
        }
    )


def _text(error: RequestError, message: str, request_id: str) -> bytes:
    text = f"inference error: {error.code} - {message}"
    if error.status == _SERVER_ERROR and request_id not in text:
        text += f" (request {request_id})"  # not in the Go EPP; it identifies the log lines
    return text.encode()
