"""Metrics that plugins declare: the service ``metrics`` of a plugin's constructor."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal, Protocol

from epp.scheduling import Plugin

__all__ = [
    "NO_PLUGIN_METRICS",
    "PluginCounter",
    "PluginHistogram",
    "PluginLabels",
    "PluginMetrics",
]

PluginLabels = Literal["always", "several", "never"]
"""When to add ``plugin_type`` and ``plugin_name`` to a gauge: always, if several instances have it,
or never, because its own labels distinguish the instances."""


class PluginCounter(Protocol):
    """Counts events, or amounts, of one plugin."""

    def inc(self, *labels: str) -> None:
        """Count one; pass one value per label.

        Values may come from clients: beyond 1000 label sets, or if the metrics page is full,
        further sets count as ``other``.
        """

    def add(self, count: int, *labels: str) -> None:
        """Count ``count``, 0 or more; like :meth:`inc`."""


class PluginHistogram(Protocol):
    """Distribution of a value that one plugin observes."""

    def observe(self, value: float) -> None:
        """Observe ``value``, which must not be NaN."""


class PluginMetrics(Protocol):
    """Declares metrics of a plugin.

    Names get the prefix of the process, and the labels ``plugin_type`` and ``plugin_name`` are
    appended, so instances of one type share a metric. A gauge ends with its instance; a counter
    continues, as Prometheus expects.
    """

    def counter(
        self, plugin: Plugin, name: str, documentation: str, labels: Sequence[str] = ()
    ) -> PluginCounter:
        """Return a counter; ``name`` ends in ``_total``.

        Raises:
            ValueError: Another metric has that name.
        """

    def histogram(
        self, plugin: Plugin, name: str, documentation: str, bounds: Sequence[float]
    ) -> PluginHistogram:
        """Return a histogram; like a counter it outlives the instance.

        Args:
            plugin: The plugin.
            name: Name with the unit as suffix.
            documentation: One sentence.
            bounds: Inclusive upper bounds of the buckets, ascending, without infinity.

        Raises:
            ValueError: Another metric has that name.
        """

    def gauge(
        self,
        plugin: Plugin,
        name: str,
        documentation: str,
        read: Callable[[], Mapping[tuple[str, ...], float]],
        labels: Sequence[str] = (),
        *,
        plugin_labels: PluginLabels = "always",
    ) -> None:
        """Register a gauge whose values are read at each scrape.

        At most a thousand values are exported; those with a label of more than 256 characters are
        left out.

        Args:
            plugin: The plugin.
            name: Name with the unit as suffix.
            documentation: One sentence.
            read: A method of ``plugin``; returns values by label values, ``{(): value}`` without
                labels. It is called in another thread, so it must read plain values or copies.
            labels: Names of the labels, from a closed set.
            plugin_labels: When ``plugin_type`` and ``plugin_name`` are added.

        Raises:
            ValueError: Another metric has that name.
        """


class _NoCounter:
    def inc(self, *labels: str) -> None:
        pass

    def add(self, count: int, *labels: str) -> None:
        pass


class _NoHistogram:
    def observe(self, value: float) -> None:
        pass


class _NoMetrics:
    def counter(
        self, plugin: Plugin, name: str, documentation: str, labels: Sequence[str] = ()
    ) -> PluginCounter:
        return _NoCounter()

    def histogram(
        self, plugin: Plugin, name: str, documentation: str, bounds: Sequence[float]
    ) -> PluginHistogram:
        return _NoHistogram()

    def gauge(
        self,
        plugin: Plugin,
        name: str,
        documentation: str,
        read: Callable[[], Mapping[tuple[str, ...], float]],
        labels: Sequence[str] = (),
        *,
        plugin_labels: PluginLabels = "always",
    ) -> None:
        pass


NO_PLUGIN_METRICS: Final[PluginMetrics] = _NoMetrics()
"""Discards all metrics: for tests, and for graphs built only to be checked."""
