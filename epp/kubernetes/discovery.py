"""Discovery of the pods of an InferencePool, or of those that a label selector matches.

It follows copies of the pool and of its pods. After each change it reports all endpoints again, so
neither the order of events matters, nor whether a new list has made up for lost ones. While the API
server is unreachable, the last endpoints stay.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import ClassVar, Final

import structlog

from epp.data_layer import (
    DiscoveryError,
    EndpointDiscovery,
    EndpointSink,
    EndpointSpec,
    ObjectStore,
)
from epp.kubernetes.api import ConfigurationError, ReflectorStatus
from epp.kubernetes.app_protocol import AppProtocolCheck
from epp.kubernetes.namespace_objects import NamespaceObjects
from epp.kubernetes.pod_endpoints import PodEndpoints
from epp.kubernetes.policies import PoolPolicies
from epp.kubernetes.pools import Pool
from epp.kubernetes.shared_client import SharedClient
from epp.kubernetes.source import POOL_GROUP, PodSource
from epp.scheduling import Plugin

_log = structlog.get_logger(__name__)

SOURCE: Final = "kubernetes"
"""Name under which the endpoints are reported."""


class KubernetesDiscovery(EndpointDiscovery):
    """Reports the endpoints of a pool and follows its objectives and rewrites.

    Args:
        source: The pool, or the pods.
        policies: Gets the objectives and rewrites of the pool; None if they come from elsewhere.
        client: The API server; None for that of the environment.
        objects: Copies of all pools, if they are shared; None to follow this one.
        may_write_status: Whether this replica writes the status of objectives and rewrites now;
            None if no replica does. Not used with shared ``objects``, which write it themselves.
        is_populated: Whether this replica knows endpoints, objectives and rewrites now; otherwise
            it reports none. Call :meth:`populate` after a change.
    """

    type: ClassVar[str] = "kubernetes-discovery"

    def __init__(
        self,
        source: PodSource,
        *,
        policies: ObjectStore | None = None,
        client: SharedClient | None = None,
        objects: NamespaceObjects | None = None,
        may_write_status: Callable[[], bool] | None = None,
        is_populated: Callable[[], bool] = lambda: True,
    ) -> None:
        self.name = SOURCE
        self.source = source
        """The pool, or the pods."""
        self._policies = policies
        self._has_own_objects = objects is None
        self._objects = objects or NamespaceObjects(
            client or SharedClient(),
            source.namespace,
            POOL_GROUP if source.pool is None else source.pool.group,
            pool_name="" if source.pool is None else source.pool.name,
            has_policies=policies is not None,
            may_write_status=may_write_status,
        )
        self._is_populated = is_populated
        self._was_populated: bool | None = None
        self._specs: Sequence[EndpointSpec] | None = None
        """The endpoints; None while they are unknown."""
        self._sink: EndpointSink | None = None
        self.pool: Pool | None = None
        """The pool; None while there is none, and for a fixed selection of pods."""
        self._is_missing = False
        """Whether it is known that there is no pool."""
        self._pods: PodEndpoints | None = None
        self._followed_policies: PoolPolicies | None = None
        self._protocol = AppProtocolCheck(lambda: self.pool)

    @property
    def is_pool_known(self) -> bool:
        """Whether it is known which pods are endpoints."""
        return self.source.selection is not None or self.pool is not None

    def suits(self, parsers: Iterable[Plugin]) -> bool:
        """Return whether the pool's ``appProtocol`` suits these parsers; True without a pool."""
        return self._protocol.is_met_by(parsers)

    def populate(self) -> None:
        """Report all known endpoints and policies, or none, after a change of ``is_populated``."""
        if self._is_populated() is self._was_populated:
            return
        if self._specs is not None:
            self._report(self._specs)
        if self._followed_policies is not None:
            self._followed_policies.review()

    def statuses(self) -> Mapping[str, ReflectorStatus]:
        """Return the state of its own copies by the name of their kind, for operators."""
        statuses = dict(self._objects.statuses()) if self._has_own_objects else {}
        if self._pods is not None and self._pods.reflector is not None:
            statuses[self._pods.reflector.resource.full_name] = self._pods.reflector.status
        return statuses

    async def run(self, sink: EndpointSink) -> None:
        source, objects = self.source, self._objects
        async with AsyncExitStack() as stack:
            try:
                client = await stack.enter_async_context(objects.client.use())
            except ConfigurationError as error:
                raise DiscoveryError(str(error)) from error
            tasks = await stack.enter_async_context(asyncio.TaskGroup())

            self._sink = sink
            self._pods = PodEndpoints(client, source.namespace, self._report, tasks)
            if source.pool is None:
                self._pods.select(source.selection)
            else:
                if self._policies is not None and objects.policies is not None:
                    self._followed_policies = PoolPolicies(
                        objects.policies,
                        source.pool,
                        self._policies,
                        pool_exists=self._pool_exists,
                        is_populated=self._is_populated,
                    )
                    stack.enter_context(self._followed_policies.followed())
                objects.add_listener(self._pool_changed)
                stack.callback(objects.remove_listener, self._pool_changed)
                if self._has_own_objects:
                    tasks.create_task(objects.run(), name="pool")
                else:
                    self._pool_changed()
            await asyncio.Event().wait()

    def _report(self, specs: Sequence[EndpointSpec]) -> None:
        assert self._sink is not None  # noqa: S101 - set before pods are followed
        self._specs = specs
        self._was_populated = self._is_populated()
        self._sink.replace_endpoints(SOURCE, specs if self._was_populated else ())

    def _pool_exists(self) -> bool | None:
        """Return whether the pool exists; None while that is unknown."""
        if self.pool is None and not self._objects.are_pools_known:
            return None
        return self.pool is not None

    def _pool_changed(self) -> None:
        """Follow the pods of the pool as it is now, if this pool has changed."""
        assert self._pods is not None  # noqa: S101 - made before the pools are followed
        assert self.source.pool is not None  # noqa: S101 - only a pool changes
        found = self._objects.pool(self.source.pool.name)
        if found is None and self._pool_exists() is None:
            return  # perhaps there is one
        before, self.pool = self.pool, found
        if found == before and (found is not None or self._is_missing):
            return
        self._is_missing = found is None
        if found is not None:
            _log.info("pool found" if before is None else "pool changed", **self._place())
        elif before is None:
            _log.warning("there is no pool of this name; waiting for it", **self._place())
        else:
            _log.warning("the pool is gone, and so are its endpoints", **self._place())
        self._pods.select(None if found is None else found.selection())
        if self._followed_policies is not None:
            self._followed_policies.review()

    def _place(self) -> Mapping[str, str]:
        pool = self.source.pool
        assert pool is not None  # noqa: S101 - only a pool changes
        return {"namespace": self.source.namespace, "pool": pool.name, "group": pool.group}
