"""What operators see of the copies of the cluster's objects: ``/debug/kubernetes`` and metrics."""

from collections.abc import Callable, Iterable
from typing import Final

import msgspec
from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from epp.kubernetes.discovery import KubernetesDiscovery
from epp.kubernetes.leader_election import Elector

PATH: Final = "kubernetes"


class CopyLine(msgspec.Struct, frozen=True, kw_only=True):
    """The copy of all objects of a kind."""

    resource: str
    """``PLURAL.GROUP``, or ``PLURAL`` in the core group."""
    synced: bool
    """Whether all objects have been read once."""
    contact_age_seconds: float | None
    """Time since the API server has last confirmed or changed the copy; None before the first."""
    fault: str
    """Why the copy cannot be kept current now; "" if it can."""
    relists: int
    """How often all objects were read again."""
    undecodable: int
    """Objects that are left out because they have another form than expected."""


class KubernetesPage(msgspec.Struct, frozen=True, kw_only=True):
    """The pool, and the copies."""

    namespace: str
    pool: str
    """"" if the pods are selected by labels."""
    is_pool_known: bool
    lease: str
    """Name of the Lease that the leader holds; "" without leader election."""
    leader: str
    """Identity of the leader; "" if there is none."""
    is_leader: bool
    """Whether this process leads."""
    lease_fault: str
    """Why the Lease cannot be read or written now; "" if it can."""
    copies: list[CopyLine]


class KubernetesStatus(Collector):
    """Shows the state of a discovery.

    Args:
        discovery: The discovery.
        clock: Monotonic seconds.
        lease: Name of the Lease; "" without leader election.
        elector: Returns the elector, None before it begins.
    """

    def __init__(
        self,
        discovery: KubernetesDiscovery,
        clock: Callable[[], float],
        *,
        lease: str = "",
        elector: Callable[[], Elector | None] = lambda: None,
    ) -> None:
        self._discovery = discovery
        self._clock = clock
        self._lease = lease
        self._elector = elector

    def page(self) -> KubernetesPage:
        """Return the page."""
        source, elector = self._discovery.source, self._elector()
        fault = None if elector is None else elector.status.fault
        return KubernetesPage(
            namespace=source.namespace,
            pool=source.pool.name if source.pool else "",
            is_pool_known=self._discovery.is_pool_known,
            lease=self._lease,
            leader="" if elector is None else elector.leader,
            is_leader=elector is not None and elector.is_leader,
            lease_fault="" if fault is None else str(fault),
            copies=self._copies(),
        )

    def collect(self) -> Iterable[Metric]:
        """Read all states."""
        synced = _gauge("synced", "1 if all objects of the resource have been read once.")
        age = _gauge(
            "contact_age_seconds",
            "Time since the API server has last confirmed or changed the copy of the resource.",
        )
        faulty = _gauge("faulty", "1 while the copy of the resource cannot be kept current.")
        relists = CounterMetricFamily(
            "llm_d_epp_kubernetes_relists",
            "How often all objects of the resource were read again.",
            labels=["resource"],
        )
        for copy in self._copies():
            labels = [copy.resource]
            synced.add_metric(labels, copy.synced)
            faulty.add_metric(labels, bool(copy.fault))
            relists.add_metric(labels, copy.relists)
            if copy.contact_age_seconds is not None:
                age.add_metric(labels, copy.contact_age_seconds)
        yield from (synced, age, faulty, relists)
        if self._lease:
            elector = self._elector()
            leads = GaugeMetricFamily(
                "leader_election_master_status",
                "1 if this process holds the Lease.",
                labels=["name"],
            )
            leads.add_metric([self._lease], elector is not None and elector.is_leader)
            yield leads

    def _copies(self) -> list[CopyLine]:
        now = self._clock()
        return [
            CopyLine(
                resource=resource,
                synced=status.is_synced,
                contact_age_seconds=_age(status.last_contact, now),
                fault="" if status.fault is None else str(status.fault),
                relists=status.relists,
                undecodable=status.undecodable,
            )
            for resource, status in self._discovery.statuses().items()
        ]


def _gauge(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"llm_d_epp_kubernetes_{name}", text, labels=["resource"])


def _age(moment: float | None, now: float) -> float | None:
    return None if moment is None else now - moment
