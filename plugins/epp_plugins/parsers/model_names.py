"""Replaces the model name in a JSON body; every other byte stays unchanged."""

import json
import re
from typing import Final

import msgspec

from epp.parsing.plugins import NestedTooDeeplyError, ParseError
from epp_plugins.parsers.surrogates import without_half_pairs

MAX_FIELDS: Final = 1000
"""Limit of the fields of a body whose model is replaced; APIs have fewer than 100."""
MAX_KEY_BYTES: Final = 4096
"""Limit of a key, as JSON, with the whitespace and the colon around it. Finding the end of a longer
one takes 6 ms per MB."""

_DECODE_KEY = msgspec.json.Decoder(str).decode
_SKIP = msgspec.json.Decoder(msgspec.Raw).decode
_what_follows = re.compile(r"trailing characters \(byte (\d+)\)").search
_OPENING = re.compile(rb"[ \t\r\n]*+\{[ \t\r\n]*+(\}?)").match
_KEY = re.compile(
    rb'[ \t\r\n]*+("[^"\\]*+(?:\\.[^"\\]*+)*+")[ \t\r\n]*+:[ \t\r\n]*+', re.DOTALL
).match
_CLOSING = re.compile(rb"\}[ \t\r\n]*+").fullmatch
_COMMA = ord(",")
_BLANK = b" \t\r\n"


def with_model(body: bytes, model: str) -> bytes:
    """Return ``body`` with ``model`` in place of the value of its top-level key ``model``.

    A body without that key gets it in front. If keys are repeated, only the last value of each is
    kept, the one that servers read, so that the body cannot name a second model.

    Raises:
        ParseError: The body is not a JSON object, has more than 1000 fields, or has a key of more
            than 4096 bytes.
    """
    try:
        try:
            fields, is_repeated = _fields(body)
        except msgspec.DecodeError:
            mended = without_half_pairs(body)  # of the same length
            if mended is None:
                raise
            fields, is_repeated = _fields(mended)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ParseError(f"the model cannot be replaced in the request body: {error}") from None
    except RecursionError:
        raise NestedTooDeeplyError("the request body is nested too deeply") from None
    name = _quoted(model)
    view = memoryview(body)
    if is_repeated:
        return _written({key: view[start:end] for key, (start, end) in fields.items()}, name)
    if "model" in fields:
        start, end = fields["model"]
        return b"".join((view[:start], name, view[end:]))
    begin = body.index(b"{") + 1
    comma = b"," if fields else b""
    return b"".join((view[:begin], b'"model":', name, comma, view[begin:]))


def _fields(body: bytes) -> tuple[dict[str, tuple[int, int]], bool]:
    """Return the start and end of the value of each field, and whether a key is repeated.

    The body is not decoded into a dict: at 2 us per field a body of 60 MB of fields took 12 s.

    Raises:
        ParseError: There are too many fields, or a key is too long.
        DecodeError: The body is not an object.
    """
    found: dict[str, tuple[int, int]] = {}
    opening = _OPENING(body)
    if opening is None:
        raise msgspec.DecodeError("it is not a JSON object")
    view, at, count = memoryview(body), opening.end(), 0
    if opening[1]:
        at -= 1
    else:
        while True:
            key = _KEY(body, at, at + MAX_KEY_BYTES)
            if key is None:
                if len(body) > at + MAX_KEY_BYTES:
                    raise ParseError(
                        f"the request body has no key within {MAX_KEY_BYTES} bytes (byte {at})"
                    )
                raise msgspec.DecodeError(f"a key was expected (byte {at})")
            count += 1
            if count > MAX_FIELDS:
                raise ParseError(f"the request body has more than {MAX_FIELDS} fields")
            start = key.end()
            at = start + _value_bytes(view[start:])
            end = at
            if body[end - 1] in _BLANK:  # one call: a loop over 64 MB of whitespace took 5 s
                end = start + len(body[start:at].rstrip(_BLANK))
            found[_DECODE_KEY(key[1])] = (start, end)
            if body[at] != _COMMA:
                break
            at += 1
    if not _CLOSING(body, at):
        raise msgspec.DecodeError(f"the object was expected to end (byte {at})")
    return found, count != len(found)


def _value_bytes(rest: memoryview) -> int:
    """Return the length of the value at the start of ``rest``, with the whitespace after it.

    The decoder skips a value at 1 MB per millisecond and then raises an error with the position of
    the trailing characters. It has no other interface to decode a prefix.

    Raises:
        DecodeError: ``rest`` does not start with a value, or nothing follows it.
    """
    try:
        _SKIP(rest)
    except msgspec.DecodeError as error:
        follows = _what_follows(str(error))
        if follows is None:
            raise
        return int(follows[1]) - 1
    raise msgspec.DecodeError("the object has no end")


def _written(fields: dict[str, memoryview], name: bytes) -> bytes:
    pieces: list[bytes | memoryview] = []
    for key, value in ({**fields, "model": memoryview(name)}).items():
        pieces += (b",", _quoted(key), b":", value)
    pieces[0] = b"{"
    return b"".join((*pieces, b"}"))


def _quoted(text: str) -> bytes:
    # Not msgspec, which cannot encode unpaired surrogates; a name in the operator's YAML may have
    # one.
    return json.dumps(text).encode()
