"""The text of a family of our own metrics: byte for byte what prometheus_client makes of it.

All children of a family have the same samples, so what differs between their lines is the label
values and the numbers. A :class:`Layout` holds the rest, made once.
"""

from collections.abc import Container, Sequence
from functools import cache
from typing import Final, NamedTuple

from prometheus_client.openmetrics.exposition import escape_label_name, escape_metric_name
from prometheus_client.utils import floatToGoString

_GO_EXPONENT: Final = 1_000_000
"""From here on Go, and so prometheus_client, writes an exponent."""
_NUMBER_CHARS: Final = 8
"""What a number is reckoned to take: ``12345.0`` and the end of the line."""


class LabelTexts(NamedTuple):
    """The labels of one child as they stand on a line."""

    whole: str
    """For samples without a label of their own."""
    before: str
    """Those that sort before the sample's own label, with their comma."""
    after: str
    """Those that sort behind it, with their comma."""


class _Line(NamedTuple):
    """One line without label values and number."""

    sample: str
    """Name of the sample."""
    start: str
    own: str
    """The sample's own label, such as ``le="0.5"``; "" for none."""
    end: str


def number(value: float) -> str:
    """Return ``value`` as it stands on a page."""
    if value.__class__ is int and -1 < value < _GO_EXPONENT:
        return f"{value}.0"
    text: str = floatToGoString(value)  # type: ignore[no-untyped-call] # it has no types
    return text


class Block:
    """A header, and the lines below it that each child adds.

    Attributes:
        header: Of the metric.
    """

    def __init__(self, header: str, lines: Sequence[tuple[int, _Line]]) -> None:
        self.header = header
        self._indexes = [index for index, _ in lines]
        # Samples with a label of their own, the buckets, come first.
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
    """What the lines of all children of a family have in common.

    Args:
        kind: ``counter``, ``gauge`` or ``histogram``.
        name: Name of the metric, a counter's without ``_total``.
        text: Its help.
        labels: Names of its labels.
        samples: Those of any child: suffix, labels of the sample's own (one at the most), value.
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
        """Return about how many bytes the lines of a child with ``labels`` take."""
        size = len(labels.whole)
        if not labels.whole.isascii():
            size = len(labels.whole.encode())
        return self._fixed_bytes + len(self._lines) * (size + 1)

    def block(self, *, openmetrics: bool, names: Container[str] | None) -> Block | None:
        """Return the family's part of a page; None if it has none there.

        Args:
            openmetrics: In that format instead of Prometheus's own.
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
