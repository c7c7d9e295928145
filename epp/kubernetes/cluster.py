"""Everything that an endpoint picker does in its cluster, as the application sees it."""

import time
from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry

from epp.data_layer import ObjectStore
from epp.kubernetes.discovery import KubernetesDiscovery
from epp.kubernetes.source import PodSource
from epp.kubernetes.status import PATH, KubernetesStatus
from epp.observability import DebugPage


class Cluster:
    """The cluster in which the endpoints are pods.

    Args:
        source: The pool, or the pods.
        policies: Gets the objectives and rewrites of the pool; None if they come from elsewhere.
        registry: Where its metrics are registered.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        source: PodSource,
        policies: ObjectStore | None,
        registry: CollectorRegistry,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.discovery = KubernetesDiscovery(source, policies=policies)
        self._status = KubernetesStatus(self.discovery, clock)
        registry.register(self._status)

    @property
    def is_ready(self) -> bool:
        """Whether the pool exists; always if the pods are selected by labels."""
        return self.discovery.is_pool_known

    def debug_pages(self) -> Mapping[str, DebugPage]:
        """Return the pages for operators by path."""
        return {PATH: DebugPage(self._status.page)}
