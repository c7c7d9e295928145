"""Refuses bodies with too many JSON values before they are parsed.

A parser skips a string at 0.25 ms per MB, but values of two bytes at up to 4 ms per MB: 64 MB of
them would block the event loop for 0.25 s, and again to replace the model name. No honest body has
more values than a model reads tokens, so one limit serves all parsers.

Counting all values would take longer than parsing a string. So samples at random places are
counted, 1 KiB per 128 KiB: a client that does not know the places cannot hide values between them.
The estimate has an error of about 10 %, which is enough for a limit far above any honest body.
"""

from collections.abc import Callable
from random import Random
from typing import Final

from epp.parsing.errors import TooManyValuesError

MIN_VALUE_BYTES: Final = 2
"""A digit and its comma."""
_PIECE_BYTES = 1024
_MIN_PIECES = 64
"""0.1 ms."""
_BYTES_PER_PIECE = 128 << 10
_random = Random()  # noqa: S311 - no client sees its numbers


def count_values(body: bytes, start: int = 0, stop: int | None = None) -> int:
    """Return an upper bound of the values in ``body`` from ``start`` to ``stop``.

    Counts commas and opening brackets, including those within strings.
    """
    end = len(body) if stop is None else stop
    return (
        body.count(b",", start, end) + body.count(b"[", start, end) + body.count(b"{", start, end)
    )


def check_values(
    body: bytes, max_values: int, choose: Callable[[], float] = _random.random
) -> None:
    """Refuse a body with too many values; a body too short for so many is not read.

    Args:
        body: JSON, or anything else.
        max_values: Limit of the number of values.
        choose: Returns a random number in [0, 1).

    Raises:
        TooManyValuesError: The body has more.
    """
    size = len(body)
    if size <= max_values * MIN_VALUE_BYTES:
        return
    pieces = max(_MIN_PIECES, size // _BYTES_PER_PIECE)
    counted_bytes = pieces * _PIECE_BYTES
    if counted_bytes >= size:
        values = count_values(body)
    else:
        room = size - _PIECE_BYTES
        starts = [int(choose() * room) for _ in range(pieces)]
        found = sum([count_values(body, at, at + _PIECE_BYTES) for at in starts])
        values = found * size // counted_bytes
    if values > max_values:
        raise TooManyValuesError(
            f"the request body has more than {max_values} values: numbers, texts, lists and"
            " objects, or commas in its texts"
        )
