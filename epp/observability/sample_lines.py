"""Format metric families as text, byte for byte like prometheus_client.

All children of a family have the same samples, so their lines differ only in label values and
numbers. A :class:`Layout` holds the rest, computed once.
"""

from collections.abc import Container, Sequence
from functools import cache
from typing import Final, NamedTuple

from prometheus_client.openmetrics.exposition import escape_label_name, escape_metric_name
from prometheus_client.utils import floatToGoString

_GO_EXPONENT: Final = 1_000_000
"""Numbers from here on are written with an exponent, as in Go and prometheus_client."""
_NUMBER_CHARS: Final = 8
"""Estimated length of a number: ``12345.0`` and the end of the line."""


class LabelTexts(NamedTuple):
    """The labels of one child, formatted."""

    whole: str
    """For samples without an additional label."""
    before: str
    """Labels that sort before the sample's additional label, with a comma."""
    after: str
    """Labels that sort after it, with a comma."""


class _Line(NamedTuple):
    """One line without label values and number."""

    sample: str
    """Name of the sample."""
    start: str
    own: str
    """The additional label, such as ``le="0.5"``; "" for none."""
    end: str


def number(value: float) -> str:
    """Return ``value`` formatted for the page."""
    if value.__class__ is int and -1 < value < _GO_EXPONENT:
        return f"{value}.0"
    text: str = floatToGoString(value)  # type: ignore[no-untyped-call] # it has no types
    return text


class Block:
    """A metric's header and the template of its children's lines.

    Attributes:
        header: The ``# HELP`` and ``# TYPE`` lines.
    """

    def __init__(self, header: str, lines: Sequence[tuple[int, _Line]]) -> None:
        self.header = header
        self._indexes = [index for index, _ in lines]
        # Samples with an additional label, the buckets, come first.
        self._own = sum(bool(line.own) for _, line in lines)
        self._plain = len(lines) - self._own
        self._pieces: list[str] = []
        for _, line in lines:
            self._pieces += (
                "\n" if self._pieces else "",
                line.start,
                "",
                line.own,
                "",
                line.end,
                "",
            )

    def lines(self, labels: LabelTexts, numbers: Sequence[str]) -> str:
        """Return the lines of one child with these ``numbers``."""
        if not self._pieces:
            return ""
        pieces = self._pieces.copy()
        own, plain = self._own, self._plain
        pieces[2::7] = [labels.before] * own + [labels.whole] * plain
        pieces[4::7] = [labels.after] * own + [""] * plain
        pieces[6::7] = [numbers[index] for index in self._indexes]
        pieces.append("\n")
        return "".join(pieces)


class Layout:
    """The parts common to the lines of all children of a family.

    Args:
        kind: ``counter``, ``gauge`` or ``histogram``.
        name: Name of the metric, a counter's without ``_total``.
        text: Its help.
        labels: Names of its labels.
        samples: Samples of any child: suffix, additional labels (at most one), value.
    """

    def __init__(
        self,
        kind: str,
        name: str,
        text: str,
        labels: Sequence[str],
        samples: Sequence[tuple[str, tuple[tuple[str, str], ...], float]],
    ) -> None:
        self._kind = kind
        self._name = name
        self._text = text
        self._labels = sorted((escape_label_name(each), at) for at, each in enumerate(labels))
        own_names = {own for _, more, _ in samples for own, _ in more}
        self._own_name = min(own_names, default="")
        self._lines = _lines(
            name, tuple([(suffix, more) for suffix, more, _ in samples]), has_labels=bool(labels)
        )
        self._fixed_bytes = sum(
            len(line.start) + len(line.own) + len(line.end) + _NUMBER_CHARS for line in self._lines
        )

    def label_texts(self, values: Sequence[str]) -> LabelTexts:
        """Return the labels of a child with these ``values``, in the order of the names."""
        pairs = [(name, f'{name}="{_escaped(values[at])}"') for name, at in self._labels]
        own = self._own_name
        return LabelTexts(
            ",".join([pair for _, pair in pairs]),
            "".join([f"{pair}," for name, pair in pairs if name < own]),
            "".join([f",{pair}" for name, pair in pairs if name > own]) if own else "",
        )

    def length(self, labels: LabelTexts) -> int:
        """Return the approximate length of the lines of a child with ``labels``."""
        size = len(labels.whole)
        if not labels.whole.isascii():
            size = len(labels.whole.encode())
        return self._fixed_bytes + len(self._lines) * (size + 1)

    def block(self, *, openmetrics: bool, names: Container[str] | None) -> Block | None:
        """Return the family's part of a page; None if it is empty.

        Args:
            openmetrics: Use the OpenMetrics format instead of Prometheus's text format.
            names: Only samples of these names; None for all.
        """
        wanted = [
            (index, line)
            for index, line in enumerate(self._lines)
            if names is None or line.sample in names
        ]
        if names is not None and not wanted:
            return None
        if openmetrics:
            return Block(_header(self._name, _escaped(self._text), self._kind), wanted)
        text = self._text.replace("\\", r"\\").replace("\n", r"\n")
        name = f"{self._name}_total" if self._kind == "counter" else self._name
        return Block(_header(name, text, self._kind), wanted)


# Cached: the metrics of one picker have 311 lines, and a process may make many pickers (tests do).
@cache
def _lines(
    name: str, samples: tuple[tuple[str, tuple[tuple[str, str], ...]], ...], *, has_labels: bool
) -> tuple[_Line, ...]:
    """Return a line for each sample, given as its suffix and the labels of its own."""
    return tuple([_line(name + suffix, more, has_labels) for suffix, more in samples])


def _line(sample: str, more: Sequence[tuple[str, str]], has_labels: bool) -> _Line:
    name = escape_metric_name(sample)
    own = "".join([f'{label}="{_escaped(value)}"' for label, value in more])
    if own or has_labels:
        return _Line(sample, f"{name}{{", own, "} ")
    return _Line(sample, name, own, " ")


def _header(name: str, text: str, kind: str) -> str:
    name = escape_metric_name(name)
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
