"""The metrics of the exchange between replicas."""

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from epp.replication.replica import Replica
from epp.replication.traffic import Dropped


class ReplicaCollector(Collector):
    """The metrics of the exchange between replicas.

    Args:
        replica: This process.
    """

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    def collect(self) -> Iterable[Metric]:
        """Read the counts."""
        traffic, peers = self._replica.traffic, self._replica.readings()
        yield GaugeMetricFamily(
            "llm_d_epp_replica_connected",
            "1 while this replica can send its state to others.",
            float(self._replica.is_connected),
        )
        yield GaugeMetricFamily(
            "llm_d_epp_replica_peers", "Other replicas whose state is in use.", len(peers)
        )
        age = GaugeMetricFamily(
            "llm_d_epp_replica_peer_age_seconds",
            "Time since the last message of another replica.",
            labels=["peer"],
        )
        flight = GaugeMetricFamily(
            "llm_d_epp_replica_peer_inflight_requests",
            "Requests that another replica has in flight, as it reported.",
            labels=["peer"],
        )
        for name, reading in peers.items():
            age.add_metric([name], reading.age_seconds)
            flight.add_metric([name], reading.in_flight)
        yield from (age, flight)
        messages = CounterMetricFamily(
            "llm_d_epp_replica_messages_total",
            "Messages between replicas, by direction: sent or received.",
            labels=["direction"],
        )
        messages.add_metric(["sent"], traffic.sent)
        messages.add_metric(["received"], traffic.received)
        size = CounterMetricFamily(
            "llm_d_epp_replica_bytes_total",
            "Bytes of the messages between replicas, by direction: sent or received.",
            labels=["direction"],
        )
        size.add_metric(["sent"], traffic.sent_bytes)
        size.add_metric(["received"], traffic.received_bytes)
        dropped = CounterMetricFamily(
            "llm_d_epp_replica_messages_dropped_total",
            "Messages between replicas that were lost or ignored, by reason.",
            labels=["reason"],
        )
        for reason in Dropped:
            dropped.add_metric([reason], traffic.dropped[reason])
        yield from (messages, size, dropped)
