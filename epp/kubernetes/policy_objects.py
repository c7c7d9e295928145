"""InferenceObjectives and InferenceModelRewrites as the API has them.

Objects whose ``poolRef`` names another pool, or that are being deleted, are ignored. So is a match
without a model, as in the Go EPP. If only some targets of a rule have a weight, those without are
never chosen.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any, Final

import msgspec

from epp.data_layer import Objective, PolicyMeta, Rewrite, RewriteRule
from epp.kubernetes.api import ObjectMeta, Resource
from epp.kubernetes.source import FORMER_POOL_GROUP, POOL_GROUP, PoolRef

LLM_D_GROUP: Final = "llm-d.ai"
_VERSION: Final = "v1alpha2"

OBJECTIVES: Final = tuple(
    Resource(group, _VERSION, "inferenceobjectives", "InferenceObjective")
    for group in (LLM_D_GROUP, FORMER_POOL_GROUP)
)
"""The resource in each API group; the first group that the API server has is used."""

REWRITES: Final = tuple(
    Resource(group, _VERSION, "inferencemodelrewrites", "InferenceModelRewrite")
    for group in (LLM_D_GROUP, FORMER_POOL_GROUP)
)
"""The same for rewrites."""


class _PoolRef(msgspec.Struct, frozen=True):
    name: str = ""
    group: str = POOL_GROUP


class PolicyObjectMeta(ObjectMeta, frozen=True, kw_only=True, rename="camel"):
    """The metadata of these objects."""

    generation: int = 0
    creation_timestamp: datetime | None = None
    deletion_timestamp: str | None = None


class _ObjectiveSpec(msgspec.Struct, frozen=True, rename="camel"):
    pool_ref: _PoolRef = _PoolRef()
    priority: int | None = None


class InferenceObjective(msgspec.Struct, frozen=True):
    """The priority of requests."""

    metadata: PolicyObjectMeta
    spec: _ObjectiveSpec = _ObjectiveSpec()
    status: Any = None
    """Any JSON: a malformed status must not hide the object."""

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

    metadata: PolicyObjectMeta
    spec: _RewriteSpec = _RewriteSpec()
    status: Any = None
    """Any JSON, as above."""

    def read(self, pool: PoolRef) -> Rewrite | None:
        """Return the rewrite, None if it is not one of ``pool``."""
        meta = _policy_meta("InferenceModelRewrite", self.metadata, self.spec.pool_ref, pool)
        return None if meta is None else Rewrite(meta, tuple(_rules(self.spec)))


class _OnlyPoolRef(msgspec.Struct, frozen=True, rename="camel"):
    pool_ref: _PoolRef = _PoolRef()


class UnreadablePolicy(msgspec.Struct, frozen=True):
    """An objective or a rewrite whose spec has an unexpected form."""

    metadata: PolicyObjectMeta
    spec: Any = None
    status: Any = None

    def is_of(self, pool: PoolRef) -> bool:
        """Return whether it is one of ``pool``; False if not even that can be read."""
        try:
            ref = msgspec.convert(self.spec, _OnlyPoolRef).pool_ref
        except msgspec.ValidationError:
            return False
        return _policy_meta("", self.metadata, ref, pool) is not None


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


def _policy_meta(
    kind: str, meta: PolicyObjectMeta, ref: _PoolRef, pool: PoolRef
) -> PolicyMeta | None:
    if (ref.name, ref.group) != (pool.name, pool.group) or meta.deletion_timestamp is not None:
        return None
    return PolicyMeta(
        kind=kind,
        name=meta.name,
        origin=f"{kind} {meta.namespace}/{meta.name}",
        pool=pool.name,
        created_at=meta.creation_timestamp,
    )
