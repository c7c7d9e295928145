"""Header maps that have the layout of an earlier one are split at once.

A layout is everything in an encoded HeaderMap but the values: tags, names and lengths. The requests
of one client differ in values alone, such as the request id, so there are few layouts. Of a map of
a known length one :class:`struct.Struct` takes what stands between the values. If that is the
layout's, the values are cut out of one text at the layout's places; then the map has the same
headers by definition. Of the other maps one in some is learned, so that maps which are all
different cost little more than without.
"""

from collections.abc import Callable
from operator import itemgetter
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
    """A layout: what stands before each value, and where the values stand."""

    names: tuple[str, ...]
    """In lower case."""
    unset: dict[str, str]
    """The same as keys, without values."""
    fixed: tuple[bytes, ...]
    """What stands before each value."""
    fixed_of: Callable[[bytes], tuple[bytes, ...]]
    """Returns the same of a map of this length."""
    values_of: Callable[[str], tuple[str, ...]]
    """Returns the values of a map of this layout, read as Latin-1, and an empty one."""


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
        names, unset, fixed, fixed_of, values_of = layout
        if fixed_of(block) != fixed:
            return None
        values = values_of(block.decode("latin-1"))
        # Only lengths may be beyond ASCII.
        if not block.isascii() and not "".join(values).isascii():
            return None
        headers = unset.copy()  # a dict that need not grow
        # Not update(), which is hardly quicker, and slower than this when compiled.
        for name, value in zip(names, values, strict=False):
            headers[name] = value
        return headers

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
    parts: list[str] = []
    at = 0
    for _, start, end in spans:
        parts.append(f"{start - at}s{end - start}x")
        at = end
    fixed_of = Struct("".join(parts)).unpack
    names = tuple(name for name, _, _ in spans)
    # With an empty one, because of a sole value itemgetter makes no tuple.
    values_of = itemgetter(*(slice(start, end) for _, start, end in spans), slice(0, 0))
    return _Layout(names, dict.fromkeys(names, ""), fixed_of(block), fixed_of, values_of)
