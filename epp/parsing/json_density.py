"""Refuses bodies with too many JSON values before they are parsed.

To skip a text costs a parser 0.25 ms a MB, to skip values of two bytes up to 4 ms: 64 MB of them
would hold up the event loop for 0.25 s, and as long again for another model name. No honest body
has more values than a model reads tokens, so one limit serves all parsers.

To count all values would take longer than to parse a text. So samples at random places are counted,
1 KiB for each 128 KiB: a client that does not know the places cannot hide values between them. The
estimate is some 10 per cent off, which is close enough for a limit that no honest body comes near.
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
    """Return an upper bound of the values that ``body`` has from ``start`` to ``stop``.

    Commas and opening brackets are counted, also those within texts.
    """
    end = len(body) if stop is None else stop
    return (
        body.count(b",", start, end) + body.count(b"[", start, end) + body.count(b"{", start, end)
    )


def check_values(
    body: bytes, max_values: int, choose: Callable[[], float] = _random.random
) -> None:
    """Refuse a body with too many values; a body without room for so many is not read.

    Args:
        body: JSON, or anything else.
        max_values: The values that it may have.
        choose: Returns a random number from 0 to 1, and not 1.

    Raises:
        TooManyValuesError: It has more.
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
