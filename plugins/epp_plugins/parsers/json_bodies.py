"""Decodes JSON request bodies for all parsers, in one pass and with the same error texts.

Only the fields that scheduling uses are read; each parser declares its own in a :class:`Body`. All
of them are slices of raw JSON (``msgspec.Raw``), so that the pass decodes no values, however often
a field is repeated: 64 KB of numbers of 4000 digits took 2 ms. Strings and numbers are decoded
afterwards if they are short enough. The prompt stays raw, and the original bytes are sent on to the
model server unchanged.
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
"""Default of a raw field; no JSON value is empty."""

COUNT_LIMIT: Final = 1 << 63
"""Exclusive upper bound of token counts; others are ignored."""

MAX_NAME_BYTES: Final = 4096
"""Limit of a model name or a cache salt, as JSON. Names are kept, logged and used as labels, and a
string with one emoji takes four bytes per character."""

_NULL = msgspec.Raw(b"null")
_TRUE = msgspec.Raw(b"true")
_NOTHING = (b"", b"null")
_NO_TOOLS = (*_NOTHING, b"[]")
_MAX_DIGITS = 20
"""Characters of a number below COUNT_LIMIT, with its sign."""
_decode_text = msgspec.json.Decoder(str).decode
_decode_number = msgspec.json.Decoder(int).decode


class Body(msgspec.Struct, gc=False):
    """The fields that nearly all APIs share; a parser adds the field of its prompt.

    Fields that only affect scheduling are not validated: the model server refuses values of the
    wrong type.
    """

    model: msgspec.Raw = ABSENT
    stream: msgspec.Raw = ABSENT
    cache_salt: msgspec.Raw = ABSENT


def decoded(decoder: "msgspec.json.Decoder[T]", body: bytes) -> T:
    """Return ``body`` as the type of ``decoder``.

    An unpaired surrogate is read as U+FFFD: JavaScript clients that truncate a string within an
    emoji send one, and servers accept it.

    Raises:
        NestedTooDeeplyError: The nesting exceeds the decoder's (about 1,000 levels on Python 3.11).
        ParseError: The body is not JSON, or not of that type.
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
    """Return the model of a body; "" if it is absent and optional.

    Args:
        model: The field of the body.
        call: The request of the body.
        is_optional: Whether the API does not require a model.

    Raises:
        ParseError: The model is absent and required, or its name is too long.
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
    """Return the raw JSON of the required field ``field``.

    Raises:
        ParseError: The field is absent or null.
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
    """Return ``limit``, or ``older`` if that is absent or null; None if it is not an integer.

    Args:
        body_bytes: Length of the body, or of the part of it that has the fields.
        limit: The field of the body.
        older: An older field with the same meaning.
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

    Only a long body can have long values: checking those of all bodies would cost 0.2 us each.
    """
    return body_bytes > MAX_NAME_BYTES and memoryview(value).nbytes > max_bytes


def text_of(value: msgspec.Raw) -> str:
    """Return the string ``value``; "" if it is not a string, or longer than MAX_NAME_BYTES."""
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
    """Return the request in ``call``.

    Args:
        call: The HTTP request.
        body: Its decoded body.
        prompt: The raw JSON of its prompt; b"" for none.
        tools: The raw JSON of its tools; b"" for none.
        max_output_tokens: Maximum tokens of its response; None if it sets no limit.
        model: The model; by default that of ``body``, which is then required.

    Raises:
        ParseError: ``body`` lacks the required model.
    """
    if model is None:
        model = model_of(body.model, call)
    salt = body.cache_salt
    # By position: keywords would cost 0.3 us more, a fifth of a parse.
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
