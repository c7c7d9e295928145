"""How a configuration names a metric: ``name`` or ``name{label=value}``, quotes or none."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from epp.data_layer.plugins import PageTooLargeError

_SPEC = re.compile(r"\s*([a-zA-Z_:][a-zA-Z0-9_:]*)\s*(?:\{(.*)\})?\s*", re.ASCII)
_WANTED = re.compile(r'\s*([a-zA-Z_]\w*)\s*=\s*(?:"([^"]*)"|([^",{}\s]+))\s*(?:,|$)', re.ASCII)
# The look-behind keeps it linear: a search from within each word takes 2 s for one of 16 KB.
# What is possessive (``*+``) is not tried again: a label of 8 MB takes 6 s otherwise.
_LABEL = re.compile(
    rb'(?<![a-zA-Z0-9_])([a-zA-Z_][a-zA-Z0-9_]*+)\s*+=\s*+"([^"\\]*+(?:\\.[^"\\]*+)*+)"'
)
_ESCAPE = re.compile(rb"\\(.)", re.DOTALL)
MAX_LABELS_BYTES = 16 * 1024
"""Of one series; to parse them takes 10 ms at the most. vLLM's have 1 KB, and 30 per adapter."""


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """Series of one family: all, or those with certain labels."""

    text: str
    """As it was written, for messages."""
    family: bytes
    labels: tuple[tuple[str, str], ...] = ()
    """All of them must be there."""

    @classmethod
    def parse(cls, text: str) -> "MetricSpec":
        """Read a specification.

        Raises:
            ValueError: It has another form.
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
        """Return whether a series with the labels ``found`` is meant."""
        return all(found.get(name) == value for name, value in self.labels)


def parse_labels(text: bytes) -> Mapping[str, str]:
    """Return the labels of a series, from their form on the page.

    Raises:
        PageTooLargeError: They are too long.
    """
    if len(text) > MAX_LABELS_BYTES:
        raise PageTooLargeError(
            f"the labels of a series have more than {MAX_LABELS_BYTES} bytes: {text[:60]!r}"
        )
    return _known_labels(text)


# The labels of a server's cache configuration never change and its sets of adapters seldom do:
# parsing the 40 labels of the first costs 25 us, finding them here 1 us.
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
