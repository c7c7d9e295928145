"""Splits a header map in one step if it has the layout of an earlier one.

A layout is everything in an encoded HeaderMap but the values: tags, names and lengths. The requests
of one client differ in values alone, such as the request id, so there are few layouts. If a map has
the length of a known layout, its values are cut out at the layout's places. If the layout filled
with these values equals the map, the map has the layout's headers. Of the other maps, one in
several is learned, so that maps that are all different cost little more than without layouts.
"""

from collections.abc import Callable
from operator import itemgetter
from typing import Final, NamedTuple

from epp.compiled import IS_COMPILED

MAX_LAYOUTS: Final = 256
"""Maximum number of layouts kept; each takes about 4 KB."""
MAX_BYTES: Final = 4096
"""Longest map whose layout is learned."""
MISSES_PER_LESSON: Final = 7
"""One in this many unknown maps is learned, because learning takes as long as reading a map header
by header. Odd, because maps of requests and responses alternate: with 8, every lesson would fall on
the same one of the two."""

_VALUES: Final = slice(1, None, 2)
"""Places of the values in the parts of a layout."""

Spans = list[tuple[str, int, int]]
"""The headers of a map: name, start and end of the value."""


class _Layout(NamedTuple):
    """A layout: the text before each value, and the places of the values."""

    names: tuple[str, ...]
    """In lower case."""
    unset: dict[str, str]
    """The names as keys, with empty values."""
    parts: list[str]
    """The text before each value, read as Latin-1; after each, a place for the value."""
    values_of: Callable[[str], tuple[str, ...]]
    """Returns the values of a map of this layout, read as Latin-1, and an empty one."""
    spans: Spans
    """Where the values stand."""


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
        if IS_COMPILED:
            return _read_in_a_loop(layout, block)
        names, unset, fixed, values_of, _ = layout
        text = block.decode("latin-1")
        values = values_of(text)
        parts = fixed.copy()
        parts[_VALUES] = values
        if "".join(parts) != text:
            return None
        # Only lengths may be beyond ASCII.
        if not block.isascii() and not "".join(values).isascii():
            return None
        headers = unset.copy()  # a dict that need not grow
        # Not update(), which is hardly quicker.
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


def _read_in_a_loop(layout: _Layout, block: bytes) -> dict[str, str] | None:
    """Return what :meth:`HeaderLayouts.read` does: compiled, in half of its instructions."""
    _names, unset, fixed, _values_of, spans = layout
    text = block.decode("latin-1")
    parts = fixed.copy()
    headers = unset.copy()
    at = 1
    for name, start, end in spans:
        headers[name] = parts[at] = text[start:end]
        at += 2
    if "".join(parts) != text:
        return None
    # Only lengths may be beyond ASCII.
    if not text.isascii() and not "".join(parts[_VALUES]).isascii():
        return None
    return headers


def _layout(block: bytes, spans: Spans) -> _Layout:
    text = block.decode("latin-1")
    parts: list[str] = []
    at = 0
    for _, start, end in spans:
        parts += (text[at:start], "")
        at = end
    names = tuple(name for name, _, _ in spans)
    # With an empty slice, because for a single one itemgetter returns no tuple.
    values_of = itemgetter(*(slice(start, end) for _, start, end in spans), slice(0, 0))
    return _Layout(names, dict.fromkeys(names, ""), [*parts, text[at:], ""], values_of, spans)
