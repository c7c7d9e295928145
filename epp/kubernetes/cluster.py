"""The application's interface to everything that an endpoint picker does in its cluster."""

import asyncio
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from prometheus_client import CollectorRegistry

from epp.data_layer import DiscoveryError, ObjectStore
from epp.kubernetes.api import ConfigurationError, load_connection
from epp.kubernetes.discovery import KubernetesDiscovery
from epp.kubernetes.leader_election import Elector, make_identity
from epp.kubernetes.namespace_objects import NamespaceObjects
from epp.kubernetes.object_watches import ObjectWatches, PluginObjects
from epp.kubernetes.shared_client import SharedClient
from epp.kubernetes.source import PodSource
from epp.kubernetes.status import PATH, KubernetesStatus
from epp.kubernetes.token_authorizer import TokenAuthorizer
from epp.observability import Authorizer, DebugPage


class KubernetesCluster:
    """The cluster in which the endpoints are pods.

    Args:
        namespace: Namespace of the pools and the pods.
        registry: Where its metrics are registered.
        lease_of: Part of the name of the Lease: the pools that this process serves.
        elects_leader: Whether only one replica, the leader, is ready, and the others wait.
        shared_group: API group of the pools if several of them are served, so that they share
            copies; "" for one.
        has_policies: Whether objectives and rewrites come from the cluster.
        writes_status: Whether to write their status.
        watch_relay: Socket file of a relay that watches for several processes; None to watch here.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        namespace: str,
        registry: CollectorRegistry,
        *,
        lease_of: str,
        elects_leader: bool = False,
        shared_group: str = "",
        has_policies: bool = True,
        writes_status: bool = False,
        watch_relay: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.namespace = namespace
        """Namespace of the pools and the pods."""
        self._client = SharedClient(relay=watch_relay)
        self._may_write_status = (lambda: self.leads) if writes_status else None
        self.objects: NamespaceObjects | None = None
        """Copies of all pools; None if each discovery has its own."""
        if shared_group:
            self.objects = NamespaceObjects(
                self._client,
                namespace,
                shared_group,
                has_policies=has_policies,
                may_write_status=self._may_write_status,
            )
        self._watches = ObjectWatches(namespace)
        self._lease = f"epp-{namespace}-{lease_of}.llm-d.ai"
        self._elects_leader = elects_leader
        self._elector: Elector | None = None
        self._resigned = asyncio.Event()
        self.discoveries: list[KubernetesDiscovery] = []
        """The discovery of each pool."""
        self._status = KubernetesStatus(
            namespace,
            lambda: self.discoveries,
            clock,
            shared=self.objects,
            plugin_objects=self._watches,
            lease=self._lease if elects_leader else "",
            elector=lambda: self._elector,
        )
        registry.register(self._status)

    @property
    def leads(self) -> bool:
        """Whether this replica serves and writes; True without an election."""
        elector = self._elector
        return not self._elects_leader or (elector is not None and elector.is_leader)

    def discover(
        self,
        source: PodSource,
        policies: ObjectStore | None,
        populates_standbys: Callable[[], bool],
    ) -> KubernetesDiscovery:
        """Return a discovery of the pool or the pods of ``source``; see :meth:`forget`.

        Args:
            source: The pool, or the pods.
            policies: Gets the objectives and rewrites of the pool; None if they come from
                elsewhere.
            populates_standbys: Whether a replica that does not lead knows the endpoints, too. After
                a change, call ``populate`` of the discovery.
        """
        discovery = KubernetesDiscovery(
            source,
            policies=policies,
            client=self._client,
            objects=self.objects,
            may_write_status=self._may_write_status,
            # A leader that stops serves its last requests.
            is_populated=lambda: self.leads or self._resigned.is_set() or populates_standbys(),
        )
        self.discoveries.append(discovery)
        return discovery

    def plugin_objects(self) -> PluginObjects:
        """Return a feed of the objects that the plugins of a pool read."""
        return PluginObjects(self._watches)

    def forget(self, discovery: KubernetesDiscovery) -> None:
        """Remove a discovery that has ended from metrics and pages."""
        self.discoveries.remove(discovery)

    async def run(self) -> None:
        """Follow shared objects, and take part in the election of a leader, until cancelled.

        Raises:
            DiscoveryError: There is no usable configuration of the API server.
        """
        try:
            async with self._client.use() as client, asyncio.TaskGroup() as tasks:
                tasks.create_task(self._watches.run(client), name="objects of plugins")
                if self.objects is not None:
                    tasks.create_task(self.objects.run(), name="namespace objects")
                if self._elects_leader:
                    self._elector = Elector(
                        client,
                        self.namespace,
                        self._lease,
                        make_identity(),
                        changed=self._leadership_changed,
                    )
                    tasks.create_task(self._take_part(self._elector), name="leader election")
        except ConfigurationError as error:
            raise DiscoveryError(str(error)) from error

    async def _take_part(self, elector: Elector) -> None:
        """Run an elector until :meth:`resign`."""
        election = asyncio.create_task(elector.run(), name="elector")
        try:
            await self._resigned.wait()
        finally:
            election.cancel()
            await _end_of(election)

    def _leadership_changed(self) -> None:
        for discovery in self.discoveries:
            discovery.populate()

    def resign(self) -> None:
        """Release the Lease: another replica may lead at once."""
        self._resigned.set()

    @staticmethod
    def authorizer() -> Authorizer:
        """Return the authorizer of clients of the metrics port, by the cluster's RBAC."""
        return TokenAuthorizer(load_connection)

    def debug_pages(self) -> Mapping[str, DebugPage]:
        """Return the pages for operators by path."""
        return {PATH: DebugPage(self._status.page)}


async def _end_of(task: asyncio.Task[None]) -> None:
    """Wait until the task has ended, even while being cancelled.

    Without open streams the process ends at once, and the Lease has to be released first.
    """
    cancellation: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancellation = error
    if cancellation is not None:
        raise cancellation
