"""Metrics of the workers: those of their supervisor, and those of their messages."""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


class Counted(Protocol):
    """The part of a worker that these metrics use."""

    lives: int

    @property
    def is_ready(self) -> bool:
        """Whether it decides requests."""

    @property
    def index(self) -> int:
        """Its number."""


class LinksCollector(Collector):
    """Messages between workers that were lost.

    Args:
        lost: Returns the number so far.
    """

    def __init__(self, lost: Callable[[], int]) -> None:
        self._lost = lost

    def collect(self) -> Iterable[Metric]:
        yield CounterMetricFamily(
            "llm_d_epp_worker_messages_lost_total",
            "Messages that another worker did not get because it read too slowly.",
            self._lost(),
        )


class SupervisorMetrics(Collector):
    """Which workers are ready, and how often each was started again.

    Args:
        workers: All workers.
    """

    def __init__(self, workers: Sequence[Counted]) -> None:
        self._workers = workers

    def collect(self) -> Iterable[Metric]:
        ready = GaugeMetricFamily(
            "llm_d_epp_worker_ready", "1 for a worker that decides requests.", labels=["worker"]
        )
        restarts = CounterMetricFamily(
            "llm_d_epp_worker_restarts_total",
            "How often a worker was started again because it had ended.",
            labels=["worker"],
        )
        for each in self._workers:
            ready.add_metric([str(each.index)], each.is_ready)
            restarts.add_metric([str(each.index)], max(0, each.lives - 1))
        yield ready
        yield restarts
