"""Metrics of the ports: connections, connections closed by a limit, descriptors."""

from collections.abc import Callable, Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from epp.sockets import PortStatistics, descriptor_limit, open_descriptors

_PREFIX = "llm_d_epp_"


class PortCollector(Collector):
    """Gauges and counters of every port, and of the descriptors of the process.

    Args:
        read: Returns the statistics of each port by name.
    """

    def __init__(self, read: Callable[[], Mapping[str, PortStatistics]]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        """Read everything once."""
        ports = self._read()
        connections = GaugeMetricFamily(
            f"{_PREFIX}port_connections", "Connections open.", labels=["port"]
        )
        limits = GaugeMetricFamily(
            f"{_PREFIX}port_connections_limit", "Connections that may be open.", labels=["port"]
        )
        closed = CounterMetricFamily(
            f"{_PREFIX}port_connections_closed",
            "Connections closed by a limit: evicted for a newcomer, refused, timed out.",
            labels=["port", "reason"],
        )
        pauses = CounterMetricFamily(
            f"{_PREFIX}port_accept_pauses",
            "How often accepting paused because the process had no descriptor left.",
            labels=["port"],
        )
        for name, port in ports.items():
            connections.add_metric([name], port.connections)
            limits.add_metric([name], port.limit)
            closed.add_metric([name, "evicted"], port.evicted)
            closed.add_metric([name, "refused"], port.refused)
            closed.add_metric([name, "timeout"], port.timed_out)
            pauses.add_metric([name], port.accept_pauses)
        yield from (connections, limits, closed, pauses)
        yield GaugeMetricFamily(
            f"{_PREFIX}descriptors_limit",
            "Descriptors that the process may have (RLIMIT_NOFILE).",
            value=descriptor_limit().soft,
        )
        if (count := open_descriptors()) is not None:
            yield GaugeMetricFamily(
                f"{_PREFIX}descriptors_open", "Descriptors that the process has.", value=count
            )
