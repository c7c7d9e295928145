"""Halves of surrogate pairs in JSON texts: the escape of an emoji without its second part.

JavaScript counts an emoji as two characters, so a client that cuts a text to a length may cut it in
two, and ``JSON.stringify`` writes the half that is left as an escape. Go and Python servers read it
as one character; msgspec does not read it. So a body that it refuses is looked at here.
"""

import re
from typing import Final

MAX_ESCAPES: Final = 50_000
"""Escapes in a body whose texts are looked at, which takes up to 15 ms."""

_REPLACEMENT = rb"\ufffd"
# One escape after the other, so that an escaped backslash is not taken for the beginning of one.
_escapes = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
).finditer


def without_half_pairs(body: bytes) -> bytes | None:
    """Return ``body`` with U+FFFD in place of each half of a pair, every other byte in its place.

    None if it has none, or more than :data:`MAX_ESCAPES` escapes.
    """
    # Single bytes are counted and found fast: 64 MB take a few ms. Two of them take 0.2 s.
    if body.count(b"\\") > MAX_ESCAPES:
        return None
    halves = [escape.start() for escape in _escapes(body) if escape.lastindex]
    if not halves:
        return None
    view, end = memoryview(body), 0
    pieces: list[bytes | memoryview] = []
    for start in halves:
        pieces += (view[end:start], _REPLACEMENT)
        end = start + len(_REPLACEMENT)
    return b"".join((*pieces, view[end:]))
