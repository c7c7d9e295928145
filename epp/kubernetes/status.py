"""Shows operators the copies of the cluster's objects: ``/debug/kubernetes`` and metrics."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import msgspec
from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from epp.kubernetes.api import ReflectorStatus
from epp.kubernetes.discovery import KubernetesDiscovery
from epp.kubernetes.leader_election import Elector
from epp.kubernetes.namespace_objects import NamespaceObjects
from epp.kubernetes.object_watches import ObjectWatches
from epp.observability import POOL_LABEL

PATH: Final = "kubernetes"


class CopyLine(msgspec.Struct, frozen=True, kw_only=True):
    """The copy of all objects of a kind."""

    pool: str = ""
    """The pool whose pods they are, if several pools are served; "" for other objects."""
    resource: str
    """``PLURAL.GROUP``, or ``PLURAL`` in the core group; ``plugins: KIND (VERSION)`` for objects
    that plugins read."""
    synced: bool
    """Whether all objects have been read once."""
    contact_age_seconds: float | None
    """Time since the API server has last confirmed or changed the copy; None before the first."""
    fault: str
    """Why the copy cannot be kept current now; "" if it can."""
    relists: int
    """How often all objects were read again."""
    undecodable: int
    """Objects that are left out because they have an unexpected form."""


class KubernetesPage(msgspec.Struct, frozen=True, kw_only=True):
    """The pools, and the copies."""

    namespace: str
    pool: str
    """"" if the pods are selected by labels, or several pools are served."""
    is_pool_known: bool
    """Whether it is known which pods are endpoints; with several pools, of at least one."""
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
    """Shows the state of the discoveries.

    Args:
        namespace: Namespace of the pools.
        discoveries: Returns the discovery of each pool.
        clock: Monotonic seconds.
        shared: Copies that several pools share; None if there is one pool.
        plugin_objects: Copies that plugins read; None if there are none.
        lease: Name of the Lease; "" without leader election.
        elector: Returns the elector, None before it begins.
    """

    def __init__(
        self,
        namespace: str,
        discoveries: Callable[[], Sequence[KubernetesDiscovery]],
        clock: Callable[[], float],
        *,
        shared: NamespaceObjects | None = None,
        plugin_objects: ObjectWatches | None = None,
        lease: str = "",
        elector: Callable[[], Elector | None] = lambda: None,
    ) -> None:
        self._namespace = namespace
        self._discoveries = discoveries
        self._clock = clock
        self._shared = shared
        self._plugin_objects = plugin_objects
        self._lease = lease
        self._elector = elector

    def page(self) -> KubernetesPage:
        """Return the page."""
        discoveries, elector = self._discoveries(), self._elector()
        fault = None if elector is None else elector.status.fault
        names = [] if self._shared is not None else [_pool_name(each) for each in discoveries]
        return KubernetesPage(
            namespace=self._namespace,
            pool="".join(names),
            is_pool_known=any(each.is_pool_known for each in discoveries),
            lease=self._lease,
            leader="" if elector is None else elector.leader,
            is_leader=elector is not None and elector.is_leader,
            lease_fault="" if fault is None else str(fault),
            copies=self._copies(),
        )

    def collect(self) -> Iterable[Metric]:
        """Read all states."""
        names = ["resource"] if self._shared is None else ["resource", POOL_LABEL]
        synced = _gauge("synced", "1 if all objects of the resource have been read once.", names)
        age = _gauge(
            "contact_age_seconds",
            "Time since the API server has last confirmed or changed the copy of the resource.",
            names,
        )
        faulty = _gauge("faulty", "1 while the copy of the resource cannot be kept current.", names)
        relists = CounterMetricFamily(
            "llm_d_epp_kubernetes_relists",
            "How often all objects of the resource were read again.",
            labels=names,
        )
        for copy in self._copies():
            labels = [copy.resource, copy.pool][: len(names)]
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
                pool=pool,
                resource=resource,
                synced=status.is_synced,
                contact_age_seconds=_age(status.last_contact, now),
                fault="" if status.fault is None else str(status.fault),
                relists=status.relists,
                undecodable=status.undecodable,
            )
            for pool, resource, status in self._statuses()
        ]

    def _statuses(self) -> Iterator[tuple[str, str, ReflectorStatus]]:
        """Yield the state of each copy: pool, resource, state."""
        shared = self._shared
        if shared is not None:
            yield from (("", *each) for each in shared.statuses().items())
        if self._plugin_objects is not None:
            yield from (("", *each) for each in self._plugin_objects.statuses().items())
        for discovery in self._discoveries():
            pool = "" if shared is None else _pool_name(discovery)
            yield from ((pool, *each) for each in discovery.statuses().items())


def _pool_name(discovery: KubernetesDiscovery) -> str:
    pool = discovery.source.pool
    return "" if pool is None else pool.name


def _gauge(name: str, text: str, labels: Sequence[str]) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"llm_d_epp_kubernetes_{name}", text, labels=labels)


def _age(moment: float | None, now: float) -> float | None:
    return None if moment is None else now - moment
