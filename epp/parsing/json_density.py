"""Estimates how expensive a JSON body is to read, and refuses the most expensive ones.

A parser skips plain text at 0.1 ms per MB, but escapes, keys, small values and blanks between
values at 1 to 20 ms per MB, and most bodies are read several times: by the parser, by producers and
to replace the model name. A body of 60 MB of escapes blocked the event loop for 1.1 s. No honest
body has more of them than a model reads tokens, so one limit serves all parsers.

Counting them all would take longer than parsing a string. So samples at random places are counted,
1 KiB per 128 KiB: a client that does not know the places cannot hide anything between them. The
estimate has an error of about 10 %, which is enough for a limit far above any honest body.
"""

import re
from collections.abc import Callable
from random import Random
from typing import Final

from epp.parsing.errors import TooManyValuesError

MIN_VALUE_BYTES: Final = 2
"""A digit and its comma, or an escape."""
_PIECE_BYTES = 1024
_MIN_PIECES = 64
"""Counting them takes 0.1 ms."""
_BYTES_PER_PIECE = 128 << 10
_SIGNS = (b",", b":", b"[", b"{", b"\\")
_long_blanks = re.compile(rb"[ \t\r\n]{16,}+").finditer
_random = Random()  # noqa: S311 - no client sees its numbers


def count_values(body: bytes, start: int = 0, stop: int | None = None) -> int:
    """Return an upper bound of the values, keys and escapes in ``body[start:stop]``.

    Counts commas, colons, opening brackets and backslashes, including those within strings, and one
    for every two bytes of a long run of blanks.
    """
    end = len(body) if stop is None else stop
    blanks = sum([found.end() - found.start() for found in _long_blanks(body, start, end)])
    return blanks // MIN_VALUE_BYTES + sum([body.count(sign, start, end) for sign in _SIGNS])


def estimate_values(body: bytes, choose: Callable[[], float] = _random.random) -> int:
    """Estimate :func:`count_values` of a long ``body`` from samples, which takes 0.1 ms.

    Args:
        body: JSON, or anything else.
        choose: Returns a random number in [0, 1).
    """
    size = len(body)
    pieces = max(_MIN_PIECES, size // _BYTES_PER_PIECE)
    counted_bytes = pieces * _PIECE_BYTES
    if counted_bytes >= size:
        return count_values(body)
    room = size - _PIECE_BYTES
    starts = [int(choose() * room) for _ in range(pieces)]
    found = sum([count_values(body, at, at + _PIECE_BYTES) for at in starts])
    return found * size // counted_bytes


def check_values(
    body: bytes, max_values: int, choose: Callable[[], float] = _random.random
) -> None:
    """Refuse a body with too many values; a body too short for so many is not read.

    Args:
        body: JSON, or anything else.
        max_values: Limit of :func:`count_values`.
        choose: Returns a random number in [0, 1).

    Raises:
        TooManyValuesError: The body has more.
    """
    if len(body) > max_values * MIN_VALUE_BYTES and estimate_values(body, choose) > max_values:
        raise TooManyValuesError(
            f"the request body has more than {max_values} values: numbers, texts, lists, objects"
            " and their keys, or commas, colons and escapes in its texts"
        )
