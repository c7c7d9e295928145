"""Families of fast metrics (:mod:`.metric_children`), and their text on the metrics page.

A :class:`Family` is the custom collector that turns its children into samples when Prometheus
scrapes; the page is byte for byte that of prometheus_client without the ``_created`` series
(tests/observability/test_metric_families.py compares the two).

A page of many children is written without samples: :meth:`Family.lines` writes the text itself from
pieces that are the same for every child (0.2 us a line instead of 7).
"""

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from functools import cached_property, partial
from typing import Generic, Protocol, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from epp.observability.metric_children import (
    CallbackCounter,
    CallbackGauge,
    Child,
    Counter,
    Gauge,
    Histogram,
)
from epp.observability.sample_lines import LabelTexts, Layout


class MirrorCost(Protocol):
    """A family that exports the values of another one under a different name."""

    def cost(self, values: tuple[str, ...]) -> int:
        """Return an upper bound of the bytes that it adds for a child with these label values."""


C = TypeVar("C", bound=Child)

_PIECE_CHARS = 32 * 1024
"""Approximate size of the pieces of a page, in bytes."""


def _text(value: object) -> str:
    """Return ``value`` as text that can be encoded: without lone surrogates."""
    return str(value).encode(errors="backslashreplace").decode()


class Family(Collector, Generic[C]):
    """All children of one metric, by their label values.

    Args:
        kind: ``counter``, ``gauge`` or ``histogram``.
        name: Name of the metric; a counter's may end in ``_total``.
        text: Its help.
        labels: Names of its labels.
        make: Creates a child; all have the same samples.
    """

    def __init__(
        self, kind: str, name: str, text: str, labels: Sequence[str], make: Callable[[], C]
    ) -> None:
        self._kind = kind
        self._name = name.removesuffix("_total") if kind == "counter" else name
        self._text = text
        self._labels = tuple(labels)
        self._make = make
        self._children: dict[tuple[str, ...], C] = {}
        self._mirror: MirrorCost | None = None
        self.page_bytes = 0
        """Approximate length of the lines of all children, including a mirror's."""

    @cached_property
    def _layout(self) -> Layout:
        samples = tuple(self._make().samples())
        return Layout(self._kind, self._name, self._text, self._labels, samples)

    def labels(self, *values: str) -> C:
        """Return the child of ``values``, creating it if needed; keep it instead of calling again.

        Raises:
            ValueError: There are more or fewer values than labels.
        """
        child = self._children.get(values)
        if child is None:
            if len(values) != len(self._labels):
                raise ValueError(f"{self._name} has labels {self._labels}, given were {values}")
            # A value that is not a string would fail every scrape from now on.
            texts = tuple(map(_text, values))
            child = self._children.get(texts)
            if child is None:
                child = self._make()
                child.label_texts = self._layout.label_texts(texts)
                self.page_bytes += self._length(texts, child.label_texts)
                self._children[texts] = child
        return child

    def cost(self, *values: str) -> int:
        """Return the approximate length of the lines of a child, including its mirror's."""
        texts = tuple(map(_text, values))
        return self._length(texts, self._layout.label_texts(texts))

    def remove(self, *values: str) -> None:
        """Remove the child of ``values``, if there is one; see :meth:`clear`."""
        texts = tuple(map(_text, values))
        child = self._children.pop(texts, None)
        if child is not None:
            self.page_bytes -= self._length(texts, child.label_texts)

    def clear(self) -> None:
        """Remove all children; observations on removed children are lost."""
        self._children.clear()
        self.page_bytes = 0

    @property
    def name(self) -> str:
        """Name on the page, a counter's without ``_total``."""
        return self._name

    @property
    def kind(self) -> str:
        """``counter``, ``gauge`` or ``histogram``."""
        return self._kind

    @property
    def label_names(self) -> tuple[str, ...]:
        """Names of its labels."""
        return self._labels

    @property
    def children(self) -> list[tuple[tuple[str, ...], C]]:
        """The current children, by label values."""
        # list() is atomic: the event loop cannot add a child in the middle of it.
        return list(self._children.items())

    def like(self, name: str, text: str, labels: Sequence[str]) -> "Family[C]":
        """Return an empty family with children of the same type."""
        return Family(self._kind, name, text, labels, self._make)

    def mirrored_by(self, mirror: "MirrorCost") -> None:
        """Include the bytes of ``mirror`` in the cost of each child."""
        self._mirror = mirror
        self.page_bytes += sum(mirror.cost(values) for values, _ in self.children)

    def collect(self) -> Iterable[Metric]:
        """Return the family with the samples of every child."""
        family = Metric(self._name, self._text, self._kind)
        for values, child in self.children:
            own = tuple(zip(self._labels, values, strict=True))
            for suffix, more, value in child.samples():
                family.add_sample(self._name + suffix, dict(own + more), value)
        return [family]

    def describe(self) -> Iterable[Metric]:
        """Return the family without samples, which reserves its names and supports ``?name[]=``."""
        return [Metric(self._name, self._text, self._kind)]

    def lines(self, *, openmetrics: bool, names: Container[str] | None = None) -> Iterator[bytes]:
        """Yield the family's part of the page, in pieces.

        Args:
            openmetrics: Use the OpenMetrics format instead of Prometheus's text format.
            names: Only samples of these names; None for all.
        """
        children = list(self._children.values())
        block = self._layout.block(openmetrics=openmetrics, names=names)
        if block is None or (names is not None and not children):
            return
        texts, chars = [block.header], len(block.header)
        for child in children:
            text = block.lines(child.label_texts, child.numbers())
            texts.append(text)
            chars += len(text)
            if chars > _PIECE_CHARS:
                yield "".join(texts).encode()
                texts, chars = [], 0
        if texts:
            yield "".join(texts).encode()

    def _length(self, texts: tuple[str, ...], labels: LabelTexts) -> int:
        length = self._layout.length(labels)
        return length if self._mirror is None else length + self._mirror.cost(texts)


class Maker:
    """Declares metrics with the common prefix on one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def counter(self, name: str, text: str, labels: Sequence[str]) -> Family[Counter]:
        """Declare a counter, whose name ends in ``_total``."""
        return self._registered(Family("counter", f"llm_d_epp_{name}", text, labels, Counter))

    def gauge(self, name: str, text: str, labels: Sequence[str]) -> Family[Gauge]:
        """Declare a gauge."""
        return self._registered(Family("gauge", f"llm_d_epp_{name}", text, labels, Gauge))

    def callback_gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Declare a gauge without labels that is read from ``read`` at each scrape."""
        make = partial(CallbackGauge, read)
        self._registered(Family("gauge", f"llm_d_epp_{name}", text, (), make)).labels()

    def callback_counter(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Declare a counter without labels that is read from ``read`` at each scrape."""
        make = partial(CallbackCounter, read)
        self._registered(Family("counter", f"llm_d_epp_{name}", text, (), make)).labels()

    def histogram(
        self, name: str, text: str, labels: Sequence[str], bounds: Sequence[float]
    ) -> Family[Histogram]:
        """Declare a histogram with ``bounds`` of buckets, see :class:`Histogram`."""
        make = partial(Histogram, tuple(bounds))
        return self._registered(Family("histogram", f"llm_d_epp_{name}", text, labels, make))

    def _registered(self, family: Family[C]) -> Family[C]:
        self._registry.register(family)
        return family
