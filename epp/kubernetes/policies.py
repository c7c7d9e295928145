"""InferenceObjectives and InferenceModelRewrites of a pool.

Objects whose ``poolRef`` names another pool, or that are being deleted, do not count. Neither does
a match without a model, as in the Go EPP. If only some targets of a rule have a weight, those
without are never chosen.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Annotated, Final, TypeVar

import msgspec

from epp.data_layer import Objective, ObjectStore, PolicyMeta, Rewrite, RewriteRule
from epp.kubernetes.api import ApiClient, HasMetadata, ObjectMeta, Resource
from epp.kubernetes.served_kind import ServedKind
from epp.kubernetes.source import FORMER_POOL_GROUP, POOL_GROUP, PoolRef

T = TypeVar("T", bound=HasMetadata)

LLM_D_GROUP: Final = "llm-d.ai"
_VERSION: Final = "v1alpha2"

OBJECTIVES: Final = tuple(
    Resource(group, _VERSION, "inferenceobjectives", "InferenceObjective")
    for group in (LLM_D_GROUP, FORMER_POOL_GROUP)
)
"""Where objectives are read; of several groups that have them, the first one counts."""

REWRITES: Final = tuple(
    Resource(group, _VERSION, "inferencemodelrewrites", "InferenceModelRewrite")
    for group in (LLM_D_GROUP, FORMER_POOL_GROUP)
)
"""The same for rewrites."""


class _PoolRef(msgspec.Struct, frozen=True):
    name: str = ""
    group: str = POOL_GROUP


class _Meta(ObjectMeta, frozen=True, kw_only=True, rename="camel"):
    creation_timestamp: datetime | None = None
    deletion_timestamp: str | None = None


class _ObjectiveSpec(msgspec.Struct, frozen=True, rename="camel"):
    pool_ref: _PoolRef = _PoolRef()
    priority: int | None = None


class InferenceObjective(msgspec.Struct, frozen=True):
    """The priority of requests."""

    metadata: _Meta
    spec: _ObjectiveSpec = _ObjectiveSpec()

    def read(self, pool: PoolRef) -> Objective | None:
        """Return the objective, None if it is not one of ``pool``."""
        meta = _policy_meta("InferenceObjective", self.metadata, self.spec.pool_ref, pool)
        return None if meta is None else Objective(meta, self.spec.priority or 0)


class _Model(msgspec.Struct, frozen=True):
    value: str = ""


class _Match(msgspec.Struct, frozen=True):
    model: _Model | None = None


class _Target(msgspec.Struct, frozen=True, rename="camel"):
    model_rewrite: str
    weight: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] | None = None


class _Rule(msgspec.Struct, frozen=True):
    matches: tuple[_Match, ...] = ()
    targets: tuple[_Target, ...] = ()


class _RewriteSpec(msgspec.Struct, frozen=True, rename="camel"):
    pool_ref: _PoolRef = _PoolRef()
    rules: tuple[_Rule, ...] = ()


class InferenceModelRewrite(msgspec.Struct, frozen=True):
    """Other names for models."""

    metadata: _Meta
    spec: _RewriteSpec = _RewriteSpec()

    def read(self, pool: PoolRef) -> Rewrite | None:
        """Return the rewrite, None if it is not one of ``pool``."""
        meta = _policy_meta("InferenceModelRewrite", self.metadata, self.spec.pool_ref, pool)
        return None if meta is None else Rewrite(meta, tuple(_rules(self.spec)))


def _rules(spec: _RewriteSpec) -> Iterator[RewriteRule]:
    for rule in spec.rules:
        models = tuple(match.model.value for match in rule.matches if match.model is not None)
        if rule.matches and not models:
            continue
        weighted = [target for target in rule.targets if target.weight is not None]
        targets = weighted or rule.targets
        yield RewriteRule(
            models,
            tuple(target.model_rewrite for target in targets),
            tuple(target.weight for target in weighted if target.weight is not None),
        )


def _policy_meta(kind: str, meta: _Meta, ref: _PoolRef, pool: PoolRef) -> PolicyMeta | None:
    if (ref.name, ref.group) != (pool.name, pool.group) or meta.deletion_timestamp is not None:
        return None
    return PolicyMeta(
        kind=kind,
        name=meta.name,
        origin=f"{kind} {meta.namespace}/{meta.name}",
        pool=pool.name,
        created_at=meta.creation_timestamp,
    )


class PolicyKinds:
    """Follows the objectives and rewrites of a namespace while :meth:`run` runs.

    Args:
        namespace: The namespace.
    """

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._objectives: list[ServedKind[InferenceObjective]] = []
        self._rewrites: list[ServedKind[InferenceModelRewrite]] = []
        self._listeners: list[Callable[[], None]] = []

    @property
    def kinds(self) -> Sequence[ServedKind[InferenceObjective] | ServedKind[InferenceModelRewrite]]:
        """The kinds that are followed."""
        return [*self._objectives, *self._rewrites]

    def of_pool(self, pool: PoolRef) -> list[Objective | Rewrite]:
        """Return those that refer to ``pool``, sorted by name."""
        objectives = (each.read(pool) for each in _first_served(self._objectives))
        rewrites = (each.read(pool) for each in _first_served(self._rewrites))
        found = [each for each in (*objectives, *rewrites) if each is not None]
        return sorted(found, key=lambda policy: policy.meta.name)

    def add_listener(self, changed: Callable[[], None]) -> None:
        """Call ``changed`` after each change."""
        self._listeners.append(changed)

    def remove_listener(self, changed: Callable[[], None]) -> None:
        """Undo :meth:`add_listener`."""
        self._listeners.remove(changed)

    async def run(self, client: ApiClient) -> None:
        """Follow them until cancelled."""
        namespace, changed = self._namespace, self._changed
        self._objectives = [
            ServedKind(client, each, InferenceObjective, changed=changed, namespace=namespace)
            for each in OBJECTIVES
        ]
        self._rewrites = [
            ServedKind(client, each, InferenceModelRewrite, changed=changed, namespace=namespace)
            for each in REWRITES
        ]
        async with asyncio.TaskGroup() as tasks:
            for kind in self.kinds:
                tasks.create_task(kind.run(), name=kind.resource.plural)

    def _changed(self) -> None:
        for changed in list(self._listeners):
            changed()


@contextmanager
def followed_policies(kinds: PolicyKinds, pool: PoolRef, store: ObjectStore) -> Iterator[None]:
    """Pass the objectives and rewrites of ``pool`` to ``store`` within the block.

    Those of a pool that is deleted stay, for the pool of the same name that may follow.
    """

    def update() -> None:
        store.replace(kinds.of_pool(pool))

    kinds.add_listener(update)
    try:
        if kinds.kinds:
            update()
        yield
    finally:
        kinds.remove_listener(update)


def _first_served(kinds: Sequence[ServedKind[T]]) -> Iterable[T]:
    """Return the objects of the first group that has the kind."""
    return next((kind.objects.values() for kind in kinds if kind.is_served), ())
