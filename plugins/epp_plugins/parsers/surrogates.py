"""Halves of surrogate pairs in JSON texts: the escape of an emoji without its second part.

JavaScript counts an emoji as two characters, so a client that cuts a text to a length may cut it in
two, and ``JSON.stringify`` writes the half that is left as an escape. Go and Python servers read it
as one character; msgspec does not read it. So a body that it refuses is looked at here.
"""

import re
from typing import Final

MOST_ESCAPES: Final = 20_000
"""Escapes of surrogates, in pairs or not, that are looked at: 12 ms."""

_MOST_BACKSLASHES = 64
_REPLACEMENT = rb"\ufffd"
_find_escape = re.compile(
    rb"\\u[dD](?:[89abAB][0-9a-fA-F]{2}(\\u[dD][c-fC-F][0-9a-fA-F]{2})?|[c-fC-F][0-9a-fA-F]{2})"
).search


def without_half_pairs(body: bytes) -> bytes | None:
    """Return ``body`` with U+FFFD in place of each half of a pair, every byte else in its place.

    None if it has none, or more than :data:`MOST_ESCAPES` escapes of surrogates.
    """
    if b"\\ud" not in body and b"\\uD" not in body:
        return None
    halves: list[int] = []
    at = 0
    for _ in range(MOST_ESCAPES):
        escape = _find_escape(body, at)
        if escape is None:
            break
        start, at = escape.span()
        before = body[max(0, start - _MOST_BACKSLASHES) : start]
        backslashes = len(before) - len(before.rstrip(b"\\"))
        if backslashes == _MOST_BACKSLASHES:
            return None
        if backslashes % 2:  # an escaped backslash, and then letters
            at = start + 2
        elif escape[1] is None:
            halves.append(start)
    else:
        return None
    if not halves:
        return None
    mended = bytearray(body)
    for start in halves:
        mended[start : start + len(_REPLACEMENT)] = _REPLACEMENT
    return bytes(mended)
