"""Metric names in configurations: ``name`` or ``name{label=value}``, with or without quotes."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from epp.data_layer.plugins import PageTooLargeError

_SPEC = re.compile(r"\s*([a-zA-Z_:][a-zA-Z0-9_:]*)\s*(?:\{(.*)\})?\s*", re.ASCII)
_WANTED = re.compile(r'\s*([a-zA-Z_]\w*)\s*=\s*(?:"([^"]*)"|([^",{}\s]+))\s*(?:,|$)', re.ASCII)
# The look-behind makes it linear: without it, a word of 16 KB takes 2 s.
# Possessive quantifiers (``*+``) avoid backtracking: without them, a label of 8 MB takes 6 s.
_LABEL = re.compile(
    rb'(?<![a-zA-Z0-9_])([a-zA-Z_][a-zA-Z0-9_]*+)\s*+=\s*+"([^"\\]*+(?:\\.[^"\\]*+)*+)"'
)
_ESCAPE = re.compile(rb"\\(.)", re.DOTALL)
MAX_LABELS_BYTES = 16 * 1024
"""Maximum bytes of the labels of one series, which take 10 ms to parse. Those of vLLM have 1 KB,
and 30 bytes per adapter."""


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """Series of one family: all, or those with certain labels."""

    text: str
    """The specification as written, for messages."""
    family: bytes
    labels: tuple[tuple[str, str], ...] = ()
    """Labels and values that a series must have."""

    @classmethod
    def parse(cls, text: str) -> "MetricSpec":
        """Read a specification.

        Raises:
            ValueError: ``text`` is not a valid specification.
        """
        match = _SPEC.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is no metric; write name or name{{label=value}}")
        family, inside = match.groups()
        labels: list[tuple[str, str]] = []
        position, end = 0, len(inside.rstrip()) if inside else 0
        while position < end:
            pair = _WANTED.match(inside, position)
            if pair is None:
                rest = inside[position:].strip()
                raise ValueError(f"{text!r} is no metric: {rest!r} is not label=value")
            labels.append((pair[1], pair[2] if pair[3] is None else pair[3]))
            position = pair.end()
        return cls(text, family.encode(), tuple(labels))

    def matches(self, found: Mapping[str, str]) -> bool:
        """Return whether the specification includes a series with the labels ``found``."""
        return all(found.get(name) == value for name, value in self.labels)


def parse_labels(text: bytes) -> Mapping[str, str]:
    """Return the labels of a series from their text on the page.

    Raises:
        PageTooLargeError: ``text`` exceeds :data:`MAX_LABELS_BYTES`.
    """
    if len(text) > MAX_LABELS_BYTES:
        raise PageTooLargeError(
            f"the labels of a series have more than {MAX_LABELS_BYTES} bytes: {text[:60]!r}"
        )
    return _known_labels(text)


# Labels rarely change between scrapes: parsing the 40 labels of a cache configuration takes 25 us,
# a lookup here 1 us.
@lru_cache(maxsize=1024)
def _known_labels(text: bytes) -> Mapping[str, str]:
    labels = {}
    for name, value in _LABEL.findall(text):
        plain = _ESCAPE.sub(_unescape, value) if b"\\" in value else value
        labels[name.decode()] = plain.decode(errors="replace")
    return labels


def _unescape(match: re.Match[bytes]) -> bytes:
    character: bytes = match[1]
    return b"\n" if character == b"n" else character
