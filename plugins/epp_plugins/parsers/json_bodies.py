"""JSON request bodies, for every parser of them: typed, in one pass, with the same error texts.

Only the fields that scheduling uses are looked at, each parser naming its own in a :class:`Body`.
All of them are slices of raw JSON (``msgspec.Raw``), so that the pass over a body makes nothing of
what they hold, however often a field is repeated: 64 KB of numbers of 4000 digits took 2 ms. A word
or a number is decoded afterwards, if it is short enough to be one. The prompt stays raw, and the
original bytes go on to the model server untouched.
"""

from typing import Final, TypeVar

import msgspec

from epp.parsing.plugins import (
    FieldMissingError,
    HttpCall,
    ModelMissingError,
    NestedTooDeeplyError,
    NotJsonError,
    ParseError,
)
from epp.scheduling import LLMRequest
from epp_plugins.parsers.surrogates import without_half_pairs

T = TypeVar("T")

ABSENT: Final = msgspec.Raw(b"")
"""Default of a raw field; no JSON is empty."""

COUNT_LIMIT: Final = 1 << 63
"""A number of tokens that is not below this is none."""

MAX_NAME_BYTES: Final = 4096
"""Of JSON in the name of a model, or in a cache salt. Names are kept, logged and counted by, and a
text with one emoji takes four bytes for each of its letters."""

_NULL = msgspec.Raw(b"null")
_TRUE = msgspec.Raw(b"true")
_NOTHING = (b"", b"null")
_NO_TOOLS = (*_NOTHING, b"[]")
_MAX_DIGITS = 20
"""And signs, of a number below COUNT_LIMIT."""
_decode_text = msgspec.json.Decoder(str).decode
_decode_number = msgspec.json.Decoder(int).decode


class Body(msgspec.Struct, gc=False):
    """What nearly all APIs share; a parser adds the field of its prompt.

    Fields that only tune the schedule are not typed: a value of the wrong type is the model
    server's business to refuse, not ours.
    """

    model: msgspec.Raw = ABSENT
    stream: msgspec.Raw = ABSENT
    cache_salt: msgspec.Raw = ABSENT


def decoded(decoder: "msgspec.json.Decoder[T]", body: bytes) -> T:
    """Return ``body`` as the type of ``decoder``.

    Half of a surrogate pair reads as U+FFFD: JavaScript clients that cut a text within an emoji
    send one, and servers take it.

    Raises:
        NestedTooDeeplyError: The decoder cannot go so deep (about 1,000 brackets on Python 3.11).
        ParseError: It is not JSON, or not of that type.
    """
    try:
        try:
            return decoder.decode(body)
        except msgspec.DecodeError:
            mended = without_half_pairs(body)
            if mended is None:
                raise
            return decoder.decode(mended)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NotJsonError(str(error)) from None
    except RecursionError:
        raise NestedTooDeeplyError("the request body is nested too deeply") from None


def model_of(model: msgspec.Raw, call: HttpCall, is_optional: bool = False) -> str:
    """Return the model that the body names; "" where it may leave it out.

    Args:
        model: The field of the body.
        call: Where the body is from.
        is_optional: The API lets a body leave its model out.

    Raises:
        ParseError: It names none, and must, or its name is too long.
    """
    if model is not ABSENT:
        if is_longer(model, MAX_NAME_BYTES, len(call.body)):
            raise ParseError(
                f"the model in the request body takes more than {MAX_NAME_BYTES} bytes"
            )
        try:
            if name := _decode_text(model):
                return name
        except msgspec.ValidationError:
            if model != _NULL:
                raise ModelMissingError from None
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise NotJsonError("`model` is no valid Unicode text") from None
    if is_optional or call.may_lack_model:
        return ""
    raise ModelMissingError


def required(value: msgspec.Raw, field: str) -> bytes:
    """Return the raw JSON of ``field``, which a body must have.

    Raises:
        ParseError: It is absent or null.
    """
    raw = bytes(value)
    if not raw or raw == b"null":
        raise FieldMissingError(field)
    return raw


def optional(value: msgspec.Raw) -> bytes:
    """Return the raw JSON of a field; b"" if it is absent or null."""
    if value is ABSENT:
        return b""
    raw = bytes(value)
    return b"" if raw in _NOTHING else raw


def tools_of(value: msgspec.Raw) -> bytes:
    """Return the raw JSON of the tools; b"" if there are none."""
    if value is ABSENT:
        return b""
    raw = bytes(value)
    return b"" if raw in _NO_TOOLS else raw


def output_limit(body_bytes: int, limit: msgspec.Raw, older: msgspec.Raw = ABSENT) -> int | None:
    """Return ``limit``, or ``older`` where that is absent or null, if it is a whole number.

    Args:
        body_bytes: Length of the body that they are from, or of a part of it.
        limit: The field of the body.
        older: Another field that means the same.
    """
    if limit is ABSENT or limit == _NULL:
        limit = older
    if limit is ABSENT or is_longer(limit, _MAX_DIGITS, body_bytes):
        return None
    try:
        number = _decode_number(limit)
    except msgspec.DecodeError:
        return None
    return number if -COUNT_LIMIT < number < COUNT_LIMIT else None


def is_longer(value: msgspec.Raw, max_bytes: int, body_bytes: int) -> bool:
    """Return whether ``value`` is too long to be decoded.

    Only a long body has long values: to look at those of all others would cost 0.2 us each.
    """
    return body_bytes > MAX_NAME_BYTES and memoryview(value).nbytes > max_bytes


def text_of(value: msgspec.Raw) -> str:
    """Return the text that ``value`` is; "" if it is none, or longer than MAX_NAME_BYTES."""
    if value is ABSENT or memoryview(value).nbytes > MAX_NAME_BYTES:
        return ""
    try:
        return _decode_text(value)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""


def request_of(
    call: HttpCall,
    body: Body,
    *,
    prompt: bytes,
    tools: bytes = b"",
    max_output_tokens: int | None = None,
    model: str | None = None,
) -> LLMRequest:
    """Return the request that ``call`` is.

    Args:
        call: Where it is from.
        body: Its decoded body.
        prompt: The raw JSON that the model reads; b"" for none.
        tools: The raw JSON of its tools; b"" for none.
        max_output_tokens: The most tokens of its answer; None if it does not say.
        model: The model asked for; by default the one that ``body`` must name.

    Raises:
        ParseError: ``body`` names no model, and must.
    """
    if model is None:
        model = model_of(body.model, call)
    salt = body.cache_salt
    # By position, in the order of its fields: by name cost 0.3 us more, a fifth of a parse.
    return LLMRequest(
        call.request_id,
        model,
        model,
        call.path,
        call.headers,
        prompt,
        tools,
        "" if salt is ABSENT else text_of(salt),
        body.stream == _TRUE,
        max_output_tokens,
        len(call.body),
    )
