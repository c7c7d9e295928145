"""Metrics of plugins' own: the service ``metrics`` of a plugin's constructor."""

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
"""When ``plugin_type`` and ``plugin_name`` are added to a gauge: always, where several instances
have it, or never, as its own labels tell instances apart."""


class PluginCounter(Protocol):
    """Counts events of one plugin."""

    def inc(self, *labels: str) -> None:
        """Count one; as many values as the counter was made with labels.

        Values may come from clients: beyond 1000 sets, or where the metrics page has no room,
        they all count as ``other``.
        """


class PluginHistogram(Protocol):
    """Distribution of a value that one plugin observes."""

    def observe(self, value: float) -> None:
        """Take in ``value``, which is not NaN."""


class PluginMetrics(Protocol):
    """Where a plugin declares what it wants to be seen of.

    The process's prefix comes before each name, and the labels ``plugin_type`` and ``plugin_name``
    after its own, so instances of one type share a metric. A gauge ends with its instance; a
    counter goes on, as Prometheus expects of one.
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
            plugin: Whose it is.
            name: With its unit at the end.
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
        """Have a value read whenever somebody looks at the metrics.

        A thousand values are shown; those with a label of more than 256 characters are left out.

        Args:
            plugin: Whose it is.
            name: With its unit at the end.
            documentation: One sentence.
            read: A method of ``plugin``; returns values by label values, ``{(): value}`` without
                labels. Called in a thread of its own, so it reads plain values or copies.
            labels: Names of the labels, from a closed set.
            plugin_labels: When ``plugin_type`` and ``plugin_name`` are added.

        Raises:
            ValueError: Another metric has that name.
        """


class _NoCounter:
    def inc(self, *labels: str) -> None:
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
"""For where nobody looks: tests, and graphs built only to be checked."""
