"""Copies of the InferencePools of a namespace, and of the objects that refer to them.

A process follows each kind once, however many pools it serves. With one pool, the API server
selects it by its name; with several, all pools of the namespace are followed.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from epp.kubernetes.api import ApiClient, ReflectorStatus
from epp.kubernetes.policies import PolicyKinds
from epp.kubernetes.pools import POOLS, Pool
from epp.kubernetes.served_kind import ServedKind
from epp.kubernetes.shared_client import SharedClient
from epp.kubernetes.source import POOL_GROUP

_NO_POOLS: Final = (
    "no pool can be found: install the CRDs of the Gateway API Inference Extension, or name the"
    " group of those that are installed with --pool-group"
)


class NamespaceObjects:
    """Follows pools, objectives and rewrites while :meth:`run` runs.

    Args:
        client: The API server.
        namespace: The namespace.
        group: API group of the pools. If it has no pool of a name, that of v1 is used.
        pool_name: Follow only the pool of this name; "" for all.
        has_policies: Whether to follow objectives and rewrites.
        may_write_status: Whether this replica writes their status now; None if no replica does.
    """

    def __init__(
        self,
        client: SharedClient,
        namespace: str,
        group: str,
        *,
        pool_name: str = "",
        has_policies: bool,
        may_write_status: Callable[[], bool] | None = None,
    ) -> None:
        self.client = client
        """The API server."""
        self.namespace = namespace
        """The namespace."""
        self.group = group
        """API group of the pools."""
        self.policies: PolicyKinds | None = None
        """Objectives and rewrites; None if they come from elsewhere."""
        if has_policies:
            self.policies = PolicyKinds(namespace, may_write_status=may_write_status)
        self._selector = f"metadata.name={pool_name}" if pool_name else ""
        self._kinds: list[ServedKind[Pool]] = []
        self._listeners: list[Callable[[], None]] = []

    @property
    def are_pools_known(self) -> bool:
        """Whether all pools have been read once."""
        return bool(self._kinds) and all(kind.is_known for kind in self._kinds)

    def pool(self, name: str) -> Pool | None:
        """Return the pool of this name; None if there is none, or it is being deleted."""
        for kind in self._kinds:
            pool = kind.objects.get((self.namespace, name))
            if pool is not None and pool.metadata.deletion_timestamp is None:
                return pool
        return None

    def pool_names(self) -> set[str]:
        """Return the names of the pools that are not being deleted."""
        names = {name for kind in self._kinds for _, name in kind.objects}
        return {name for name in names if self.pool(name) is not None}

    def add_listener(self, changed: Callable[[], None]) -> None:
        """Call ``changed`` after changes of the pools."""
        self._listeners.append(changed)

    def remove_listener(self, changed: Callable[[], None]) -> None:
        """Undo :meth:`add_listener`."""
        self._listeners.remove(changed)

    def statuses(self) -> Mapping[str, ReflectorStatus]:
        """Return the state of each copy by the name of its kind, for operators."""
        policies = () if self.policies is None else self.policies.kinds
        reflectors = [kind.reflector for kind in (*self._kinds, *policies)]
        return {each.resource.full_name: each.status for each in reflectors if each is not None}

    async def run(self) -> None:
        """Follow the objects until cancelled.

        Raises:
            ConfigurationError: There is no usable configuration of the API server.
        """
        async with self.client.use() as client, asyncio.TaskGroup() as tasks:
            groups = [group for group in dict.fromkeys((self.group, POOL_GROUP)) if group in POOLS]
            self._kinds = [self._follow_pools(client, group) for group in groups]
            for kind in self._kinds:
                tasks.create_task(kind.run(), name="pools")
            if self.policies is not None:
                tasks.create_task(self.policies.run(client), name="policies")

    def _follow_pools(self, client: ApiClient, group: str) -> ServedKind[Pool]:
        resource, type_ = POOLS[group]
        return ServedKind(
            client,
            resource,
            type_,
            changed=self._changed,
            namespace=self.namespace,
            field_selector=self._selector,
            remedy=_NO_POOLS if group == self.group else "",
        )

    def _changed(self) -> None:
        for changed in list(self._listeners):
            changed()
