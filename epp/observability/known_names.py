"""Which names in metrics somebody other than the client vouches for.

A model name, a fairness id and a priority come with the request. The operator's own (models that
the pool serves, names of rewrites, objectives and the configuration) keep series of their own
whatever clients send; a model that a server has answered for with success comes next; a name that
nobody has vouched for comes last (:mod:`.page_budget`).
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

OTHER: Final = "other"
"""The name that stands for all without series of their own."""
MAX_NAME_CHARS: Final = 256
"""A longer name is ``other``."""
REFRESH_SECONDS: Final = 10.0
"""Least time between two looks at the operator's names; only new label sets cause one."""
MEMORY_SECONDS: Final = 3600.0
"""An adapter is on the servers' pages only while it is loaded; its name stays known so long."""
MAX_KNOWN: Final = 10_000
"""Further names are treated as if nobody knew them."""
MAX_PRIORITIES: Final = 100
"""Priorities that no objective has come from plugins; further ones are ``other`` in totals."""
ALWAYS_KNOWN: Final = frozenset({OTHER, "", "0", "default-flow"})
"""Known without a source: a request that names no model, no flow, no objective."""
MAX_PROVEN: Final = 1000
"""Models kept as proven; the one that was proven longest ago gives way."""


Names = tuple[str, ...]


class Standing(IntEnum):
    """Who vouches for a name."""

    UNKNOWN = 0
    """Nobody."""
    PROVEN = 1
    """A model server has answered a request for it with success. Fairness ids cannot be proven."""
    KNOWN = 2
    """The operator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorNames:
    """The names that one source tells of."""

    models: Collection[str] = ()
    """Models that are served, or that the operator has named."""
    targets: Collection[str] = ()
    """Models that rewrites put in the place of others."""
    fairness_ids: Collection[str] = ()
    priorities: Collection[int] = ()


class KnownNames:
    """Remembers the operator's names and the models that were proven.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sources: list[Callable[[], OperatorNames]] = []
        self._refreshed_at: float | None = None
        self._models: dict[str, float] = {}
        self._targets: dict[str, float] = {}
        self._fairness_ids: dict[str, float] = {}
        self._priorities: dict[str, float] = {}
        self._proven: OrderedDict[str, None] = OrderedDict()
        self._told_priorities: set[str] = set()

    def learn_from(self, source: Callable[[], OperatorNames]) -> None:
        """Ask ``source`` for names from now on, at intervals, on the event loop."""
        self._sources.append(source)
        self._refreshed_at = None

    def prove(self, model: str) -> None:
        """Record that a model server has answered a request for ``model`` with success."""
        if len(model) > MAX_NAME_CHARS or self._model(model) is Standing.KNOWN:
            return
        self._proven[model] = None
        self._proven.move_to_end(model)
        if len(self._proven) > MAX_PROVEN:
            self._proven.popitem(last=False)

    def model(self, name: str) -> Standing:
        """Return who vouches for a model."""
        self._refresh()
        return self._model(name)

    def priority_label(self, priority: str) -> str:
        """Return a priority as the label of a total, ``other`` if there are too many."""
        if priority in self._told_priorities or priority in self._priorities:
            return priority
        if len(self._told_priorities) >= MAX_PRIORITIES:
            return OTHER
        self._told_priorities.add(priority)
        return priority

    def flow(self, labels: Names) -> tuple[Standing, Names]:
        """Return who vouches for a flow, and its labels without unknown names.

        Args:
            labels: Fairness id and priority.
        """
        fairness_id, priority = labels
        knows_flow = fairness_id in self._fairness_ids or fairness_id in ALWAYS_KNOWN
        knows_priority = priority in self._priorities or priority in ALWAYS_KNOWN
        if knows_flow and knows_priority:
            return Standing.KNOWN, labels
        # Nobody vouches for a fairness id; they have a share of their own all the same.
        folded = (fairness_id if knows_flow else OTHER, priority if knows_priority else OTHER)
        return Standing.PROVEN, folded

    def request(self, labels: Names) -> tuple[Standing, Names]:
        """Return who vouches for a request's labels, and the labels without unknown names.

        Args:
            labels: Model, target model, fairness id and priority.
        """
        self._refresh()
        model, target, *flow_labels = labels
        flow_standing, flow = self.flow(tuple(flow_labels))
        standing = self._model(model)
        if target == model:
            known = model if standing is Standing.KNOWN else OTHER
            return min(standing, flow_standing), (known, known, *flow)
        target_standing = self._model(target)
        known_target = target if target_standing is Standing.KNOWN else OTHER
        # A client may pair any two names by a header, so such a pair is not known.
        is_paired = target not in self._targets and OTHER not in {model, target}
        known = OTHER if is_paired or standing is not Standing.KNOWN else model
        standing = min(standing, target_standing, flow_standing)
        if is_paired:
            standing = min(standing, Standing.PROVEN)
        return standing, (known, known_target, *flow)

    def _model(self, name: str) -> Standing:
        if name in self._models or name in self._targets or name in ALWAYS_KNOWN:
            return Standing.KNOWN
        return Standing.PROVEN if name in self._proven else Standing.UNKNOWN

    def _refresh(self) -> None:
        now = self._clock()
        if self._refreshed_at is not None and now - self._refreshed_at < REFRESH_SECONDS:
            return
        self._refreshed_at = now
        for source in self._sources:
            told = source()
            _remember(self._models, told.models, now)
            _remember(self._targets, told.targets, now)
            _remember(self._fairness_ids, told.fairness_ids, now)
            _remember(self._priorities, map(str, told.priorities), now)
        for known in (self._models, self._targets, self._fairness_ids, self._priorities):
            _forget(known, now - MEMORY_SECONDS)


def _remember(known: dict[str, float], names: Iterable[str], now: float) -> None:
    for name in names:
        if name in known or (len(known) < MAX_KNOWN and len(name) <= MAX_NAME_CHARS):
            known[name] = now


def _forget(known: dict[str, float], before: float) -> None:
    for name in [name for name, seen_at in known.items() if seen_at < before]:
        del known[name]
