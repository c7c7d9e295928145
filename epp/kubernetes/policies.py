"""Follow the InferenceObjectives and InferenceModelRewrites of a namespace, and pass them to pools.

:class:`PolicyKinds` has all objects of the namespace, in each API group that has the kind, however
many pools the process serves. :class:`PoolPolicies` passes those that refer to a pool to its store
after each change, and judges them: whether they are in use, and whether the pool exists.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import TypeVar

from epp.data_layer import Objective, ObjectStore, Rewrite
from epp.kubernetes.api import ApiClient, Resource
from epp.kubernetes.conditions import Condition, ObjectStatus
from epp.kubernetes.policy_objects import (
    OBJECTIVES,
    REWRITES,
    InferenceModelRewrite,
    InferenceObjective,
    UnreadablePolicy,
)
from epp.kubernetes.policy_status import accepted, invalid, resolved_refs, superseded
from epp.kubernetes.served_kind import ServedKind
from epp.kubernetes.source import PoolRef
from epp.kubernetes.status_writer import StatusWriter

T = TypeVar("T", InferenceObjective, InferenceModelRewrite)

_Object = InferenceObjective | InferenceModelRewrite
_Kind = ServedKind[InferenceObjective] | ServedKind[InferenceModelRewrite]


class PolicyKinds:
    """Follows the objectives and rewrites of a namespace while :meth:`run` runs.

    Args:
        namespace: The namespace.
        may_write_status: Whether this replica writes their status now; None if no replica does.
    """

    def __init__(
        self, namespace: str, *, may_write_status: Callable[[], bool] | None = None
    ) -> None:
        self.writer = None if may_write_status is None else StatusWriter(may_write_status)
        """Writes their status; None if no replica does."""
        self._namespace = namespace
        self._families: Sequence[Sequence[_Kind]] = ()
        """Objectives, and rewrites, each in all API groups."""
        self._listeners: list[Callable[[], None]] = []

    @property
    def kinds(self) -> Sequence[_Kind]:
        """The kinds that are followed."""
        return [kind for kinds in self._families for kind in kinds]

    @property
    def are_looked_for(self) -> bool:
        """Whether it is known which API groups have the kinds, and thus which group is used."""
        return bool(self._families) and all(kind.is_served is not None for kind in self.kinds)

    def of_pool(self, pool: PoolRef) -> list[tuple[Resource, _Object, Objective | Rewrite]]:
        """Return the objects that refer to ``pool``, by name: kind, object and parsed policy."""
        found = [
            (kind.resource, each, policy)
            for kinds in self._families
            if (kind := _first_served(kinds)) is not None
            for each in kind.objects.values()
            if (policy := each.read(pool)) is not None
        ]
        return sorted(found, key=lambda each: each[2].meta.name)

    def superseded(self, pool: PoolRef) -> Iterator[tuple[Resource, _Object, Resource]]:
        """Yield the objects of ``pool`` in a group that is not used, and the kind that is used."""
        for kinds in self._families:
            used = _first_served(kinds)
            for kind in kinds:
                if used is not None and kind is not used:
                    for each in kind.objects.values():
                        if each.read(pool) is not None:
                            yield kind.resource, each, used.resource

    def unreadable(self, pool: PoolRef) -> Iterator[tuple[Resource, UnreadablePolicy, str]]:
        """Yield the objects of ``pool`` that cannot be decoded, and why."""
        for kind in self.kinds:
            for refused in kind.undecodable.values():
                found = refused.object
                if isinstance(found, UnreadablePolicy) and found.is_of(pool):
                    yield kind.resource, found, refused.reason

    def add_listener(self, changed: Callable[[], None]) -> None:
        """Call ``changed`` after each change."""
        self._listeners.append(changed)

    def remove_listener(self, changed: Callable[[], None]) -> None:
        """Undo :meth:`add_listener`."""
        self._listeners.remove(changed)

    async def run(self, client: ApiClient) -> None:
        """Follow the objects until cancelled."""
        objectives = [self._follow(client, each, InferenceObjective) for each in OBJECTIVES]
        rewrites = [self._follow(client, each, InferenceModelRewrite) for each in REWRITES]
        self._families = (objectives, rewrites)
        async with asyncio.TaskGroup() as tasks:
            for kind in self.kinds:
                tasks.create_task(kind.run(), name=kind.resource.plural)
            if self.writer is not None:
                tasks.create_task(self.writer.run(client), name="object status")

    def _follow(self, client: ApiClient, resource: Resource, type_: type[T]) -> ServedKind[T]:
        return ServedKind(
            client,
            resource,
            type_,
            changed=self._changed,
            fallback=UnreadablePolicy,
            namespace=self._namespace,
        )

    def _changed(self) -> None:
        for changed in list(self._listeners):
            changed()


class PoolPolicies:
    """Passes the objectives and rewrites of a pool to its store, and judges them.

    Args:
        kinds: The objectives and rewrites of the namespace.
        pool: The pool.
        store: Gets the objects after each change. Those of a deleted pool stay, for a later pool of
            the same name.
        pool_exists: Returns whether the pool exists, None while that is unknown.
        is_populated: Whether the store gets the objects now; otherwise it is emptied.
    """

    def __init__(
        self,
        kinds: PolicyKinds,
        pool: PoolRef,
        store: ObjectStore,
        *,
        pool_exists: Callable[[], bool | None] = lambda: None,
        is_populated: Callable[[], bool] = lambda: True,
    ) -> None:
        self._kinds = kinds
        self._pool = pool
        self._store = store
        self._pool_exists = pool_exists
        self._is_populated = is_populated

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Follow changes of the objects within the block."""
        self._kinds.add_listener(self.review)
        try:
            if self._kinds.kinds:
                self.review()
            yield
        finally:
            self._kinds.remove_listener(self.review)
            if self._kinds.writer is not None:
                self._kinds.writer.submit(self._pool, ())

    def review(self) -> None:
        """Pass the objects to the store, and judge them.

        Call this after changes of ``pool_exists`` and of ``is_populated``.
        """
        if not self._is_populated():
            self._store.replace([])
            return
        found = self._kinds.of_pool(self._pool)
        in_vain = self._store.replace([policy for _, _, policy in found])
        exists, writer = self._pool_exists(), self._kinds.writer
        if writer is not None and exists is not None and self._kinds.are_looked_for:
            refs = resolved_refs(self._pool, exists=exists)
            in_use = (
                _status(resource, each, accepted(policy, in_vain.get(policy.meta.name, {})), refs)
                for resource, each, policy in found
            )
            writer.submit(self._pool, chain(in_use, self._left_out(refs)))

    def _left_out(self, refs: Condition) -> Iterator[ObjectStatus]:
        """Yield the statuses of the pool's objects that the store does not get."""
        for resource, each, used in self._kinds.superseded(self._pool):
            yield _status(resource, each, superseded(used), refs)
        for resource, unreadable, reason in self._kinds.unreadable(self._pool):
            yield _status(resource, unreadable, invalid(reason), refs)


def _status(
    resource: Resource, policy: _Object | UnreadablePolicy, *conditions: Condition
) -> ObjectStatus:
    meta = policy.metadata
    return ObjectStatus(
        resource=resource,
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        resource_version=meta.resource_version,
        generation=meta.generation,
        wanted=conditions,
        found=policy.status,
    )


def _first_served(kinds: Iterable[_Kind]) -> _Kind | None:
    """Return the kind in the first group that has it."""
    return next((kind for kind in kinds if kind.is_served), None)
