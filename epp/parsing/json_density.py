"""How many values a body of JSON has, told before it is parsed.

To pass over a text costs a parser 0.25 ms a MB, over values of two bytes up to 4 ms: 64 MB of them
would keep the event loop 0.25 s, and as long again for another model name. Few bodies have more
values than a model reads tokens, so there is a limit, and every parser has it for free.

To count them would take longer than to parse a text. So pieces at random places are counted, 1 KiB
for each 128 KiB: a client who does not know the places cannot hide values between them. The result
is some 10 per cent off, which means nothing for a limit that nobody comes near.
"""

from collections.abc import Callable
from random import Random
from typing import Final

from epp.parsing.errors import TooManyValuesError

LEAST_BYTES_OF_VALUE: Final = 2
"""A digit and its comma: a shorter body has no room for so many."""
_PIECE_BYTES = 1024
_FEWEST_PIECES = 64
"""0.1 ms."""
_BYTES_PER_PIECE = 128 << 10
_random = Random()  # noqa: S311 - a client sees no number of it


def count_values(body: bytes, start: int = 0, stop: int | None = None) -> int:
    """Return how many values ``body`` has from ``start`` to ``stop``, at most.

    Commas and opening brackets are counted, those in texts among them.
    """
    end = len(body) if stop is None else stop
    return (
        body.count(b",", start, end) + body.count(b"[", start, end) + body.count(b"{", start, end)
    )


def check_values(body: bytes, most: int, choose: Callable[[], float] = _random.random) -> None:
    """Refuse a body with too many values; one that has no room for them is not looked at.

    Args:
        body: JSON, or anything else.
        most: The values that it may have.
        choose: Returns a random number from 0 to 1, and not 1.

    Raises:
        TooManyValuesError: It has more.
    """
    size = len(body)
    if size <= most * LEAST_BYTES_OF_VALUE:
        return
    pieces = max(_FEWEST_PIECES, size // _BYTES_PER_PIECE)
    counted_bytes = pieces * _PIECE_BYTES
    if counted_bytes >= size:
        values = count_values(body)
    else:
        room = size - _PIECE_BYTES
        starts = [int(choose() * room) for _ in range(pieces)]
        found = sum([count_values(body, at, at + _PIECE_BYTES) for at in starts])
        values = found * size // counted_bytes
    if values > most:
        raise TooManyValuesError(
            f"the request body has more than {most} values: numbers, texts, lists and objects, or"
            " commas in its texts"
        )
