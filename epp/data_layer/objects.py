"""Objectives and model rewrites: what the director asks of every request.

Objects come whole, in the order of their files (:mod:`.object_files`), and are made into two
look-ups. Of several rewrite rules that match a model, an exact one wins over one for all models;
then the rule of the oldest object (one without a creationTimestamp counts as the newest); then the
first in the order of files and rules. This is the reference's order.
"""

import random
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate

import structlog

from epp.observability import OperatorNames

_log = structlog.get_logger(__name__)

_NEWEST = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class ObjectMeta:
    """What every object has."""

    kind: str
    name: str
    origin: str
    """``FILE:LINE``, for messages."""
    pool: str = ""
    """Name of the pool it is for; "" for any."""
    created_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Objective:
    """An InferenceObjective: the priority of the requests that name it."""

    meta: ObjectMeta
    priority: int = 0
    """At least 0 is critical, below 0 sheddable."""


@dataclass(frozen=True, slots=True)
class RewriteRule:
    """Other names for some models, or for all."""

    models: tuple[str, ...]
    """Names that clients ask for; empty for all."""
    targets: tuple[str, ...]
    """Names that model servers are asked for instead; none for the name asked for."""
    weights: tuple[int, ...] = ()
    """Shares of the targets; empty for equal ones."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """An InferenceModelRewrite."""

    meta: ObjectMeta
    rules: tuple[RewriteRule, ...]


class _Draw:
    """The targets of a rule, ready to choose from."""

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
        pool_name: Objects for other pools are left out.
        rng: Draws among the weighted targets of a rewrite.
        rewritten: Told of each decision: the rewrite's name, the model asked for, its target.
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
        self._told: set[str] = set()

    def priority_of(self, objective: str) -> int:
        """Return the priority of the objective of that name, 0 if there is none."""
        return self._priorities.get(objective, 0)

    def target_of(self, model: str) -> str | None:
        """Return the name to ask model servers for instead of ``model``, None for the same."""
        draw = self._exact.get(model, self._generic)
        if draw is None or not draw.targets:
            return None
        target = draw()
        if self._rewritten is not None:
            self._rewritten(draw.name, model, target)
        return target

    def renames_all(self) -> bool:
        """Return whether a rule matches every model, and so a request that names none."""
        return self._generic is not None and bool(self._generic.targets)

    def names(self) -> OperatorNames:
        """Return the names in the objects, for metrics."""
        draws = [*self._exact.values(), *([self._generic] if self._generic else ())]
        return OperatorNames(
            models=self._exact.keys(),
            targets={target for draw in draws for target in draw.targets},
            priorities=set(self._priorities.values()),
        )

    def replace(self, objects: Iterable[Objective | Rewrite]) -> None:
        """Make ``objects`` all there are; their order is that of files and of objects in them.

        Objects for another pool and second ones of the same kind and name are left out, and a
        warning says so once.
        """
        wanted = self._sorted_out(objects)
        self._priorities = {o.meta.name: o.priority for o in wanted if isinstance(o, Objective)}
        self._exact = {}
        self._generic = None
        rewrites = [o for o in wanted if isinstance(o, Rewrite)]
        rewrites.sort(key=lambda rewrite: rewrite.meta.created_at or _NEWEST)  # stable
        for name, rule in ((each.meta.name, rule) for each in rewrites for rule in each.rules):
            draw = _Draw(name, rule, self._rng)
            for model in rule.models:
                self._exact.setdefault(model, draw)
            if not rule.models and self._generic is None:
                self._generic = draw

    def _sorted_out(self, objects: Iterable[Objective | Rewrite]) -> Sequence[Objective | Rewrite]:
        wanted: dict[tuple[str, str], Objective | Rewrite] = {}
        told, self._told = self._told, set()  # what is mended and comes again is news
        for found in objects:
            meta = found.meta
            first = wanted.get((meta.kind, meta.name))
            if meta.pool not in {"", self._pool_name}:
                self._warn(
                    told,
                    found,
                    f"spec.poolRef.name is {meta.pool!r}, but this endpoint picker's pool is"
                    f" {self._pool_name!r} (--pool-name)",
                )
            elif first is not None:
                self._warn(
                    told,
                    found,
                    f"{first.meta.origin} has one of the same name: rename or remove one",
                )
            else:
                wanted[meta.kind, meta.name] = found
        return list(wanted.values())

    def _warn(self, told: Collection[str], left_out: Objective | Rewrite, reason: str) -> None:
        meta = left_out.meta
        text = f"{meta.origin}: {meta.kind} {meta.name!r} is left out: {reason}"
        self._told.add(text)
        if text not in told:
            _log.warning("object left out", reason=text)
