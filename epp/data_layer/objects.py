"""Objectives and model rewrites, which the director looks up for every request.

:mod:`.object_files` passes all objects at once, in file order. If several rewrite rules match a
model, an exact match wins over a rule for all models, then the rule of the oldest object (one
without a creationTimestamp counts as newest), then the first in the order of files and rules. The
Go EPP uses the same order.
"""

import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate

import structlog

from epp.observability import OperatorNames

_log = structlog.get_logger(__name__)

_NEWEST = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class PolicyMeta:
    """Fields common to all objects."""

    kind: str
    name: str
    origin: str
    """``FILE:LINE``, for messages."""
    pool: str = ""
    """Name of its pool; "" for any."""
    created_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Objective:
    """An InferenceObjective: the priority of the requests that name it."""

    meta: PolicyMeta
    priority: int = 0
    """0 or more is critical, negative is sheddable."""


@dataclass(frozen=True, slots=True)
class RewriteRule:
    """Replaces the model name of requests for some models, or for all."""

    models: tuple[str, ...]
    """Model names to match; empty for all."""
    targets: tuple[str, ...]
    """Replacement names, of which one is drawn; empty to leave the name unchanged."""
    weights: tuple[int, ...] = ()
    """Weights of the targets; empty for equal ones."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """An InferenceModelRewrite."""

    meta: PolicyMeta
    rules: tuple[RewriteRule, ...]


class _Draw:
    """Weighted random choice among the targets of a rule."""

    __slots__ = ("_cumulative", "_rng", "name", "targets")

    def __init__(self, name: str, rule: RewriteRule, rng: random.Random) -> None:
        self.name = name
        self.targets = rule.targets
        self._cumulative = list(accumulate(rule.weights or [1] * len(rule.targets)))
        self._rng = rng

    def __call__(self) -> str:
        if len(self.targets) == 1:
            return self.targets[0]
        return self._rng.choices(self.targets, cum_weights=self._cumulative)[0]


class ObjectStore:
    """The objectives and rewrites of one pool.

    Args:
        pool_name: Objects of other pools are ignored.
        rng: Random generator for weighted targets.
        rewritten: Called with each decision: name of the rewrite, requested model, target.
    """

    def __init__(
        self,
        *,
        pool_name: str,
        rng: random.Random,
        rewritten: Callable[[str, str, str], None] | None = None,
    ) -> None:
        self._pool_name = pool_name
        self._rng = rng
        self._rewritten = rewritten
        self._priorities: dict[str, int] = {}
        self._exact: dict[str, _Draw] = {}
        self._generic: _Draw | None = None
        self._logged: set[str] = set()

    def priority_of(self, objective: str) -> int:
        """Return the priority of the objective of that name, 0 if there is none."""
        return self._priorities.get(objective, 0)

    def target_of(self, model: str) -> str | None:
        """Return the name that replaces ``model``, None if it stays unchanged."""
        draw = self._exact.get(model, self._generic)
        if draw is None or not draw.targets:
            return None
        target = draw()
        if self._rewritten is not None:
            self._rewritten(draw.name, model, target)
        return target

    def renames_all(self) -> bool:
        """Return whether a rule matches every request, even one without a model."""
        return self._generic is not None and bool(self._generic.targets)

    def names(self) -> OperatorNames:
        """Return the names in the objects; metrics may use them as label values."""
        draws = [*self._exact.values(), *([self._generic] if self._generic else ())]
        return OperatorNames(
            models=self._exact.keys(),
            targets={target for draw in draws for target in draw.targets},
            priorities=set(self._priorities.values()),
        )

    def replace(self, objects: Iterable[Objective | Rewrite]) -> Mapping[str, Mapping[str, str]]:
        """Replace all objects; ``objects`` are in file order.

        Objects of another pool and duplicates (same kind and name) are ignored, with one warning.

        Returns:
            By the name of a rewrite: the models that it matches in vain ("" for all models), each
            with the name of the rewrite that decides instead.
        """
        wanted = self._sorted_out(objects)
        self._priorities = {o.meta.name: o.priority for o in wanted if isinstance(o, Objective)}
        self._exact = {}
        self._generic = None
        in_vain: dict[str, dict[str, str]] = {}
        rewrites = [o for o in wanted if isinstance(o, Rewrite)]
        rewrites.sort(key=lambda rewrite: rewrite.meta.created_at or _NEWEST)  # stable
        for name, rule in ((each.meta.name, rule) for each in rewrites for rule in each.rules):
            draw = _Draw(name, rule, self._rng)
            winners = {model: self._exact.setdefault(model, draw) for model in rule.models}
            if not rule.models:
                winners[""] = self._generic = self._generic or draw
            for model, winner in winners.items():
                if winner.name != name:
                    in_vain.setdefault(name, {})[model] = winner.name
        return in_vain

    def _sorted_out(self, objects: Iterable[Objective | Rewrite]) -> Sequence[Objective | Rewrite]:
        wanted: dict[tuple[str, str], Objective | Rewrite] = {}
        # Warn again if a fixed object breaks again.
        before, self._logged = self._logged, set()
        for found in objects:
            meta = found.meta
            first = wanted.get((meta.kind, meta.name))
            if meta.pool not in {"", self._pool_name}:
                self._warn(
                    before,
                    found,
                    f"spec.poolRef.name is {meta.pool!r}, but this endpoint picker's pool is"
                    f" {self._pool_name!r} (--pool-name)",
                )
            elif first is not None:
                self._warn(
                    before,
                    found,
                    f"{first.meta.origin} has one of the same name: rename or remove one",
                )
            else:
                wanted[meta.kind, meta.name] = found
        return list(wanted.values())

    def _warn(self, before: Collection[str], left_out: Objective | Rewrite, reason: str) -> None:
        meta = left_out.meta
        text = f"{meta.origin}: {meta.kind} {meta.name!r} is left out: {reason}"
        self._logged.add(text)
        if text not in before:
            _log.warning("object left out", reason=text)
