"""OpenAI completions and chat completions to :class:`LLMRequest`, in one typed pass.

Only the fields that scheduling uses are decoded; the prompt stays as the slice of raw JSON it is
(``msgspec.Raw``), and the original bytes go on to the model server untouched.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from epp.parsing.errors import ParseError
from epp.scheduling import LLMRequest

_ABSENT = msgspec.Raw(b"")


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


class _Completion(_Body):
    prompt: msgspec.Raw = _ABSENT

    @property
    def content(self) -> msgspec.Raw:
        return self.prompt


class _Chat(_Body):
    messages: msgspec.Raw = _ABSENT

    @property
    def content(self) -> msgspec.Raw:
        return self.messages


# Longest suffix first: "/chat/completions" also ends with "/completions".
_APIS: tuple[tuple[str, str, msgspec.json.Decoder[Any]], ...] = (
    ("/chat/completions", "messages", msgspec.json.Decoder(_Chat)),
    ("/completions", "prompt", msgspec.json.Decoder(_Completion)),
)


def parse(request_id: str, path: str, headers: Mapping[str, str], body: bytes) -> LLMRequest:
    """Make the request that scheduling sees.

    A path that is no completions API, and a request without a body, is scheduled on load alone:
    its model and prompt are empty.

    Args:
        request_id: Id of the HTTP request.
        path: Its ``:path``; a query string is ignored.
        headers: By lower-case name.
        body: The whole body; b"" for none.

    Raises:
        ParseError: The body is not JSON, or lacks ``model`` or the prompt.
    """
    if body:
        bare_path = path.partition("?")[0]
        for suffix, field, decoder in _APIS:
            if bare_path.endswith(suffix):
                request = _decoded(body, field, decoder)
                request.request_id = request_id
                request.path = path
                request.headers = headers
                return request
    return LLMRequest(
        request_id=request_id,
        target_model="",
        path=path,
        headers=headers,
        body_bytes=len(body),
    )


def _decoded(body: bytes, field: str, decoder: msgspec.json.Decoder[Any]) -> LLMRequest:
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
        raise ParseError("model not found in request body: it must be a non-empty string")
    prompt = bytes(decoded.content)
    if not prompt or prompt == b"null":
        raise ParseError(f"the request body must have a field {field!r}")
    limit = decoded.max_completion_tokens
    if limit is None:
        limit = decoded.max_tokens
    salt = decoded.cache_salt
    return LLMRequest(
        request_id="",
        target_model=model,
        model=model,
        prompt=prompt,
        cache_salt=salt if isinstance(salt, str) else "",
        stream=decoded.stream is True,
        # type(), because True is an int too.
        max_output_tokens=limit if type(limit) is int else None,
        body_bytes=len(body),
    )
