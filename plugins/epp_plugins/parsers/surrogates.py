"""Replaces unpaired surrogates in JSON strings: half of the escape of an emoji.

JavaScript counts an emoji as two characters, so a client that truncates a string may split it, and
``JSON.stringify`` writes the remaining half as an escape. Go and Python servers accept it; msgspec
does not. So a body that msgspec refuses is repaired here.
"""

import re
from typing import Final

MAX_BYTES: Final = 16 << 20
"""Limit of a body that is repaired, as each step that reads it makes a copy: 64 MB took 0.3 s."""
MAX_ESCAPES: Final = 50_000
"""Limit of the escapes in a body that is repaired, which takes up to 15 ms."""

_REPLACEMENT = rb"\ufffd"
# Matches every escape, so that an escaped backslash is not taken for the start of one.
_escapes = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
).finditer


def without_half_pairs(body: bytes) -> bytes | None:
    """Return ``body`` with U+FFFD in place of each unpaired surrogate; all offsets stay the same.

    Returns None if there is none, or if the body has more than :data:`MAX_ESCAPES` escapes or
    :data:`MAX_BYTES` bytes.
    """
    # Counting a single byte is fast: 64 MB take a few ms. A sequence of two bytes takes 0.2 s.
    if len(body) > MAX_BYTES or body.count(b"\\") > MAX_ESCAPES:
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
