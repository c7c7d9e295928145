"""JSON request bodies, for every parser of them: typed, in one pass, with the same error texts.

Only the fields that scheduling uses are decoded, each parser naming its own in a :class:`Body`. The
prompt stays the slice of raw JSON that it is (``msgspec.Raw``), and the original bytes go on to the
model server untouched.
"""

from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from epp.parsing.plugins import (
    FieldMissingError,
    HttpCall,
    ModelMissingError,
    NestedTooDeeplyError,
    NotJsonError,
)
from epp.scheduling import LLMRequest

T = TypeVar("T")

ABSENT: Final = msgspec.Raw(b"")
"""Default of a raw field; no JSON is empty."""

MOST_COUNT: Final = 1 << 63
"""A number of tokens that is not below this is none."""

_NOTHING = (b"", b"null")
_NO_TOOLS = (*_NOTHING, b"[]")


@dataclass
class _Object:
    """An object where none is expected."""


class _List(msgspec.Struct, array_like=True):
    """A list where none is expected."""


Scalar = str | int | float | bool | _Object | _List | None
"""A field whose type nobody promises. What is in a list or an object is passed over, not made: to
make 12 MB of them took a second and 300 MB."""


class Body(msgspec.Struct):
    """What nearly all APIs share; a parser adds the field of its prompt.

    Fields that only tune the schedule are not typed: a value of the wrong type is the model
    server's business to refuse, not ours.
    """

    model: Scalar = ""
    stream: Scalar = False
    cache_salt: Scalar = ""


def decoded(decoder: "msgspec.json.Decoder[T]", body: bytes) -> T:
    """Return ``body`` as the type of ``decoder``.

    Raises:
        NestedTooDeeplyError: The decoder cannot go so deep (about 1,000 brackets on Python 3.11).
        ParseError: It is not JSON, or not of that type.
    """
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NotJsonError(str(error)) from None
    except RecursionError:
        raise NestedTooDeeplyError("the request body is nested too deeply") from None


def model_of(model: object, call: HttpCall) -> str:
    """Return the model that the body names; "" where it may leave it out.

    Raises:
        ParseError: It names none, and must.
    """
    if isinstance(model, str) and model:
        return model
    if model not in (None, "") or not call.may_lack_model:
        raise ModelMissingError
    return ""


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
    raw = bytes(value)
    return b"" if raw in _NOTHING else raw


def tools_of(value: msgspec.Raw) -> bytes:
    """Return the raw JSON of the tools; b"" if there are none."""
    raw = bytes(value)
    return b"" if raw in _NO_TOOLS else raw


def output_limit(limit: object) -> int | None:
    """Return ``limit`` if it is one."""
    # type(), because True is an int too. JSON may have thousands of digits: no float takes those.
    return limit if type(limit) is int and abs(limit) < MOST_COUNT else None


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
        salt if isinstance(salt, str) else "",
        body.stream is True,
        max_output_tokens,
        len(call.body),
    )
