"""What a client reads that is answered with an error, in the form that its library knows.

The path decides, as it does about who parses the request: the Anthropic API has an error object of
its own, and its clients read kind, message and id nowhere else.
"""

from typing import NamedTuple

import msgspec

from epp.ext_proc.settings import ErrorBody
from epp.observability import MAX_ANSWER_CHARS, printable
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
_OWN_FAULT = 500


class ErrorAnswer(NamedTuple):
    """An error as it is sent."""

    body: bytes
    content_type: str
    id_header: str
    """Where the client's library looks for the request's id; "" for nowhere."""


def error_answer(error: RequestError, request_id: str, path: str, form: ErrorBody) -> ErrorAnswer:
    """Return what to answer to a request for ``path``, with its query or without.

    What it quotes of the request is cut, and so is the whole.
    """
    said = printable(str(error), MAX_ANSWER_CHARS)
    named = printable(request_id)
    if form == "text":
        return ErrorAnswer(_text(error, said, named), "text/plain", "")
    if path.partition("?")[0].endswith(_ANTHROPIC_PATHS):
        return ErrorAnswer(_anthropic(error, said, named), "application/json", "request-id")
    return ErrorAnswer(_openai(error, said, named), "application/json", "x-request-id")


def _openai(error: RequestError, said: str, request_id: str) -> bytes:
    return msgspec.json.encode(
        {
            "error": {
                "message": said,
                "type": error.code,
                "code": error.status,
                "stage": error.stage,
                "request_id": request_id,
            }
        }
    )


def _anthropic(error: RequestError, said: str, request_id: str) -> bytes:
    other = "api_error" if error.status >= _OWN_FAULT else "invalid_request_error"
    return msgspec.json.encode(
        {
            "type": "error",
            "error": {
                "type": _ANTHROPIC_KINDS.get(error.status, other),
                "message": said,
                "details": {"error_code": error.drop_reason or error.code, "stage": error.stage},
            },
            "request_id": request_id,
        }
    )


def _text(error: RequestError, said: str, request_id: str) -> bytes:
    text = f"inference error: {error.code} - {said}"
    if error.status == _OWN_FAULT and request_id not in text:
        text += f" (request {request_id})"  # the reference says none; a log is found by it
    return text.encode()
