"""Everything that an endpoint picker does in its cluster, as the application sees it."""

import asyncio
import time
from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry

from epp.data_layer import ObjectStore
from epp.kubernetes.api import ApiClient, ConfigurationError, load_connection
from epp.kubernetes.discovery import KubernetesDiscovery
from epp.kubernetes.leader_election import Elector, make_identity
from epp.kubernetes.source import PodSource
from epp.kubernetes.status import PATH, KubernetesStatus
from epp.kubernetes.token_authorizer import TokenAuthorizer
from epp.observability import Authorizer, DebugPage


class Cluster:
    """The cluster in which the endpoints are pods.

    Args:
        source: The pool, or the pods.
        policies: Gets the objectives and rewrites of the pool; None if they come from elsewhere.
        registry: Where its metrics are registered.
        pool_name: Name of the pool, for the name of the Lease.
        elects_leader: Whether one replica is ready, the leader, and the others wait.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        source: PodSource,
        policies: ObjectStore | None,
        registry: CollectorRegistry,
        *,
        pool_name: str,
        elects_leader: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.discovery = KubernetesDiscovery(source, policies=policies)
        self._lease = f"epp-{source.namespace}-{pool_name}.llm-d.ai"
        self._elects_leader = elects_leader
        self._elector: Elector | None = None
        self._resigned = asyncio.Event()
        self._status = KubernetesStatus(
            self.discovery,
            clock,
            lease=self._lease if elects_leader else "",
            elector=lambda: self._elector,
        )
        registry.register(self._status)

    @property
    def is_ready(self) -> bool:
        """Whether there is a pool, and this replica is to serve."""
        elector = self._elector
        leads = not self._elects_leader or (elector is not None and elector.is_leader)
        return self.discovery.is_pool_known and leads

    async def run(self) -> None:
        """Take part in the election of a leader until cancelled, or until :meth:`resign`."""
        if not self._elects_leader:
            return
        try:
            connection = await asyncio.to_thread(load_connection)
        except ConfigurationError:  # the discovery reports it
            return
        async with ApiClient(connection) as client:
            namespace = self.discovery.source.namespace
            self._elector = Elector(
                client, namespace, self._lease, make_identity(), changed=lambda: None
            )
            election = asyncio.create_task(self._elector.run(), name="leader election")
            try:
                await self._resigned.wait()
            finally:
                election.cancel()
                await asyncio.wait([election])

    def resign(self) -> None:
        """Release the Lease: another replica may lead at once."""
        self._resigned.set()

    @staticmethod
    def authorizer() -> Authorizer:
        """Return what decides about clients of the metrics port by the cluster's RBAC."""
        return TokenAuthorizer(load_connection)

    def debug_pages(self) -> Mapping[str, DebugPage]:
        """Return the pages for operators by path."""
        return {PATH: DebugPage(self._status.page)}
