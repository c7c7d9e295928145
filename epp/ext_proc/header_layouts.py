"""Header maps that have the layout of an earlier one are split at once.

A layout is everything in an encoded HeaderMap but the values: tags, names and lengths. The requests
of one client differ in values alone, such as the request id, so there are few layouts. A map of a
known layout is split by one :class:`struct.Struct`, whose fixed pieces are compared; then it has
the same headers by definition: 30 thousand instructions for 14 headers, one by one 78. Of the other
maps one in some is learned, so that maps which are all different cost little more than without.
"""

from collections.abc import Callable
from struct import Struct
from typing import Final, NamedTuple

MAX_LAYOUTS: Final = 256
"""Most layouts that are kept; each takes about 4 KB."""
MAX_BYTES: Final = 4096
"""Longest map whose layout is learned."""
MISSES_PER_LESSON: Final = 7
"""Learning takes as long as reading a map one by one. Odd, as maps of requests and responses
alternate: with 8, one that cannot be learned would keep the other from being learned."""

Spans = list[tuple[str, int, int]]
"""The headers of a map: name, start and end of the value."""


class _Layout(NamedTuple):
    """A layout; the pieces are fixed, value, fixed, value and so on."""

    names: tuple[str, ...]
    """In lower case."""
    fixed: tuple[bytes, ...]
    split: Callable[[bytes], tuple[bytes, ...]]


class HeaderLayouts:
    """The layouts of the latest maps; one for each length.

    Args:
        spans: Reads the headers of a map one by one; None if it cannot.
    """

    def __init__(self, spans: Callable[[bytes], Spans | None]) -> None:
        self._spans = spans
        self._known: dict[int, _Layout] = {}
        self._misses = 0

    def __len__(self) -> int:
        """Return the number of known layouts."""
        return len(self._known)

    def read(self, block: bytes) -> dict[str, str] | None:
        """Return the headers of a map; None if they have to be read one by one."""
        layout = self._known.get(len(block))
        if layout is None:
            return None
        pieces = layout.split(block)
        if pieces[::2] != layout.fixed:
            return None
        values = pieces[1::2]
        # Only lengths may be beyond ASCII.
        if not block.isascii() and not b"".join(values).isascii():
            return None
        return dict(zip(layout.names, map(bytes.decode, values), strict=True))

    def missed(self, block: bytes) -> None:
        """Learn the layout of one in :data:`MISSES_PER_LESSON` maps that were not read here."""
        self._misses += 1
        if self._misses < MISSES_PER_LESSON or len(block) > MAX_BYTES:
            return
        self._misses = 0
        spans = self._spans(block)
        if spans:
            known = self._known
            if len(known) >= MAX_LAYOUTS:
                del known[next(iter(known))]
            known[len(block)] = _layout(block, spans)


def _layout(block: bytes, spans: Spans) -> _Layout:
    sizes: list[int] = []
    at = 0
    for _, start, end in spans:
        sizes += (start - at, end - start)
        at = end
    split = Struct("".join([f"{size}s" for size in sizes])).unpack
    return _Layout(tuple(name for name, _, _ in spans), split(block)[::2], split)
