"""OpenAI completions and chat completions to :class:`LLMRequest`, in one typed pass.

Only the fields that scheduling uses are decoded; the prompt stays as the slice of raw JSON it is
(``msgspec.Raw``), and the original bytes go on to the model server untouched.
"""

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from epp.parsing.errors import ParseError
from epp.scheduling import LLMRequest

_ABSENT = msgspec.Raw(b"")
_NO_TOOLS = (b"", b"null", b"[]")


class _Body(msgspec.Struct):
    """What both APIs share.

    Fields that only tune the schedule are not typed: a value of the wrong type is the model
    server's business to refuse, not ours.
    """

    model: Any = ""
    stream: Any = False
    max_tokens: Any = None
    max_completion_tokens: Any = None
    cache_salt: Any = ""
    tools: msgspec.Raw = _ABSENT


class _Completion(_Body):
    content: msgspec.Raw = msgspec.field(default=_ABSENT, name="prompt")


class _Chat(_Body):
    content: msgspec.Raw = msgspec.field(default=_ABSENT, name="messages")


_Api = tuple[str, msgspec.json.Decoder[Any]]
"""Name of the prompt's field, and what decodes a body."""

# Longest suffix first: "/chat/completions" also ends with "/completions".
_APIS: dict[str, _Api] = {
    "/chat/completions": ("messages", msgspec.json.Decoder(_Chat)),
    "/completions": ("prompt", msgspec.json.Decoder(_Completion)),
}


def _api_of(path: str) -> _Api | None:
    bare_path = path.partition("?")[0]
    return next((api for suffix, api in _APIS.items() if bare_path.endswith(suffix)), None)


# Nearly every request comes by one of these: it is spared 0.5 us.
_USUAL = {path: _api_of(path) for path in ("/v1/completions", "/v1/chat/completions")}


def parse(
    request_id: str,
    path: str,
    headers: Mapping[str, str],
    body: bytes,
    *,
    model_headers: Collection[str] = (),
) -> LLMRequest:
    """Make the request that scheduling sees.

    A path that is no completions API, and a request without a body, is scheduled on load alone:
    its model and prompt are empty.

    Args:
        request_id: Id of the HTTP request.
        path: Its ``:path``; a query string is ignored.
        headers: By lower-case name.
        body: The whole body; b"" for none.
        model_headers: With one of them the body may leave ``model`` out, which is then empty.

    Raises:
        ParseError: The body is not JSON, or lacks ``model`` or the prompt.
    """
    api = (_USUAL.get(path) or _api_of(path)) if body else None
    if api is None:
        return LLMRequest(
            request_id=request_id,
            target_model="",
            path=path,
            headers=headers,
            body_bytes=len(body),
        )
    field, decoder = api
    try:
        decoded = decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ParseError(
            f"the request body is not a JSON object that can be read: {error}"
        ) from None
    except RecursionError:
        raise ParseError("the request body is nested too deeply") from None
    model = decoded.model
    if not isinstance(model, str) or not model:
        if model not in (None, "") or not any(map(headers.get, model_headers)):
            raise ParseError("model not found in request body: it must be a non-empty string")
        model = ""
    prompt = bytes(decoded.content)
    if not prompt or prompt == b"null":
        raise ParseError(f"the request body must have a field {field!r}")
    limit = decoded.max_completion_tokens
    if limit is None:
        limit = decoded.max_tokens
    salt, tools = decoded.cache_salt, bytes(decoded.tools)
    return LLMRequest(
        request_id=request_id,
        target_model=model,
        model=model,
        path=path,
        headers=headers,
        prompt=prompt,
        tools=b"" if tools in _NO_TOOLS else tools,
        cache_salt=salt if isinstance(salt, str) else "",
        stream=decoded.stream is True,
        # type(), because True is an int too.
        max_output_tokens=limit if type(limit) is int else None,
        body_bytes=len(body),
    )
