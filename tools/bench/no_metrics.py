"""Metrics that do nothing, in place of those of an endpoint picker; not for compiled builds."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

from epp.observability import metric_families, plugin_metrics
from epp.observability.metric_children import Counter, Gauge, Histogram


class NoCounter(Counter):
    __slots__ = ()

    def inc(self) -> None:
        pass

    def add(self, count: int) -> None:
        pass


class NoGauge(Gauge):
    __slots__ = ()

    def inc(self) -> None:
        pass

    def dec(self) -> None:
        pass

    def add(self, amount: float) -> None:
        pass

    def set(self, value: float) -> None:
        pass


class NoHistogram(Histogram):
    __slots__ = ()

    def observe(self, value: float) -> None:
        pass

    def observer(self, limit: float, exceeded: Callable[[], None]) -> Callable[[float], None]:
        return self.observe


@contextmanager
def instead() -> Iterator[None]:
    """Have metrics that are declared inside do nothing."""
    with (
        patch.multiple(metric_families, Counter=NoCounter, Gauge=NoGauge, Histogram=NoHistogram),
        patch.multiple(plugin_metrics, Counter=NoCounter, Histogram=NoHistogram),
    ):
        yield
