"""Discovery of the pods of an InferencePool, or of those that a label selector matches.

Copies of the pool and of its pods are followed. After each change all endpoints are reported anew,
so neither the order of events matters, nor whether a new list has made up for lost ones. While the
API server is away, the last endpoints stay.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Final

import structlog

from epp.data_layer import (
    DiscoveryError,
    EndpointDiscovery,
    EndpointSink,
    EndpointSpec,
    ObjectStore,
)
from epp.kubernetes.api import (
    ApiClient,
    ConfigurationError,
    Connection,
    ReflectorStatus,
    load_connection,
)
from epp.kubernetes.pod_endpoints import PodEndpoints
from epp.kubernetes.policies import Policies
from epp.kubernetes.pools import POOLS, Pool
from epp.kubernetes.served_kind import ServedKind
from epp.kubernetes.source import POOL_GROUP, PodSource

_log = structlog.get_logger(__name__)

SOURCE: Final = "kubernetes"
"""Name under which the endpoints are reported."""


class KubernetesDiscovery(EndpointDiscovery):
    """Reports the endpoints of a pool and follows its objectives and rewrites.

    Args:
        source: The pool, or the pods.
        policies: Gets the objectives and rewrites of the pool; None if they come from elsewhere.
        connect: Finds the API server; blocks.
    """

    type: ClassVar[str] = "kubernetes-discovery"

    def __init__(
        self,
        source: PodSource,
        *,
        policies: ObjectStore | None = None,
        connect: Callable[[], Connection] = load_connection,
    ) -> None:
        self.name = SOURCE
        self._connect = connect
        self.source = source
        """The pool, or the pods."""
        self._policies = policies
        self.pool: Pool | None = None
        """The pool; None while there is none, and for a fixed selection of pods."""
        self._pools: list[ServedKind[Pool]] = []
        self._pods: PodEndpoints | None = None
        self._followed_policies: Policies | None = None

    @property
    def is_pool_known(self) -> bool:
        """Whether it is known which pods are endpoints."""
        return self.source.selection is not None or self.pool is not None

    def statuses(self) -> Mapping[str, ReflectorStatus]:
        """Return the state of each copy by the plural of its kind, for operators."""
        policies = () if self._followed_policies is None else self._followed_policies.kinds
        reflectors = [
            *(kind.reflector for kind in self._pools),
            *(kind.reflector for kind in policies),
            None if self._pods is None else self._pods.reflector,
        ]
        return {
            f"{each.resource.plural}.{each.resource.group}".rstrip("."): each.status
            for each in reflectors
            if each is not None
        }

    async def run(self, sink: EndpointSink) -> None:
        source = self.source
        try:
            connection = await asyncio.to_thread(self._connect)
        except ConfigurationError as error:
            raise DiscoveryError(str(error)) from error
        async with ApiClient(connection) as client, asyncio.TaskGroup() as tasks:

            def report(specs: Sequence[EndpointSpec]) -> None:
                sink.replace_endpoints(SOURCE, specs)

            self._pods = PodEndpoints(client, source.namespace, report, tasks)
            if source.pool is None:
                self._pods.select(source.selection)
                await asyncio.Event().wait()
                return
            for group in dict.fromkeys((source.pool.group, POOL_GROUP)):
                if group in POOLS:
                    self._pools.append(self._follow_pools(client, group, source.pool.name))
            for kind in self._pools:
                tasks.create_task(kind.run(), name="pool")
            if self._policies is not None:
                self._followed_policies = Policies(
                    client, source.namespace, source.pool, self._policies
                )
                await self._followed_policies.run()
            await asyncio.Event().wait()

    def _follow_pools(self, client: ApiClient, group: str, name: str) -> ServedKind[Pool]:
        resource, type_ = POOLS[group]
        return ServedKind(
            client,
            resource,
            type_,
            changed=self._select_pods,
            namespace=self.source.namespace,
            field_selector=f"metadata.name={name}",
        )

    def _select_pods(self) -> None:
        """Follow the pods of the pool as it is now."""
        assert self._pods is not None  # noqa: S101 - made before the pools are followed
        found = [
            pool
            for kind in self._pools
            for pool in kind.objects.values()
            if pool.metadata.deletion_timestamp is None
        ]
        if not found and self.pool is None and not all(kind.is_known for kind in self._pools):
            return  # perhaps there is one
        before, self.pool = self.pool, found[0] if found else None
        if self.pool == before:
            if before is None:
                self._log_missing()
            return
        if self.pool is None:
            _log.warning("the pool is gone, and so are its endpoints", **self._place())
        else:
            _log.info("pool found" if before is None else "pool changed", **self._place())
        self._pods.select(None if self.pool is None else self.pool.selection())

    def _log_missing(self) -> None:
        _log.warning("there is no pool of this name; waiting for it", **self._place())

    def _place(self) -> Mapping[str, str]:
        pool = self.source.pool
        assert pool is not None  # noqa: S101 - only a pool changes
        return {"namespace": self.source.namespace, "pool": pool.name, "group": pool.group}
