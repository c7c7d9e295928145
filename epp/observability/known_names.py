"""Rank label values by trust, to protect the metrics page from names that clients invent.

Model names, fairness ids and priorities come with the request. Names of the operator (served
models, and names in rewrites, objectives and the configuration) always keep their own series. Next
come models for which a server has returned a success, last unknown names (:mod:`.page_budget`).
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

OTHER: Final = "other"
"""Label value for all names without series of their own."""
MAX_NAME_CHARS: Final = 256
"""A longer name is ``other``."""
REFRESH_SECONDS: Final = 10.0
"""Minimum time between two refreshes of the operator's names; new label sets trigger one."""
MEMORY_SECONDS: Final = 3600.0
"""How long a name stays known: servers report an adapter only while it is loaded."""
MAX_KNOWN: Final = 10_000
"""Limit on known names; further ones are treated as unknown."""
MAX_PRIORITIES: Final = 100
"""Limit on priorities outside objectives (plugins set them); further ones are ``other``."""
ALWAYS_KNOWN: Final = frozenset({OTHER, "", "0", "default-flow"})
"""Names that are always known: those of a request without model, flow or objective."""
MAX_PROVEN: Final = 1000
"""Limit on proven models; the one proven longest ago is evicted."""


Names = tuple[str, ...]


class Standing(IntEnum):
    """Trust in a name."""

    UNKNOWN = 0
    """Only clients use it."""
    PROVEN = 1
    """A model server has returned a success for it. Fairness ids cannot be proven."""
    KNOWN = 2
    """It comes from the operator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorNames:
    """The names from one source."""

    models: Collection[str] = ()
    """Models that are served or configured."""
    targets: Collection[str] = ()
    """Target models of rewrites."""
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
        self._labelled_priorities: set[str] = set()

    def learn_from(self, source: Callable[[], OperatorNames]) -> None:
        """Add a source of names, which is polled on the event loop."""
        self._sources.append(source)
        self._refreshed_at = None

    def prove(self, model: str) -> None:
        """Record that a model server has returned a success for ``model``."""
        if len(model) > MAX_NAME_CHARS or self._model(model) is Standing.KNOWN:
            return
        self._proven[model] = None
        self._proven.move_to_end(model)
        if len(self._proven) > MAX_PROVEN:
            self._proven.popitem(last=False)

    def model(self, name: str) -> Standing:
        """Return the standing of a model."""
        self._refresh()
        return self._model(name)

    def priority_label(self, priority: str) -> str:
        """Return a priority as the label of a total, ``other`` if there are too many."""
        if priority in self._labelled_priorities or priority in self._priorities:
            return priority
        if len(self._labelled_priorities) >= MAX_PRIORITIES:
            return OTHER
        self._labelled_priorities.add(priority)
        return priority

    def flow(self, labels: Names) -> tuple[Standing, Names]:
        """Return the standing of a flow, and its labels with unknown names folded.

        Args:
            labels: Fairness id and priority.
        """
        fairness_id, priority = labels
        knows_flow = fairness_id in self._fairness_ids or fairness_id in ALWAYS_KNOWN
        knows_priority = priority in self._priorities or priority in ALWAYS_KNOWN
        if knows_flow and knows_priority:
            return Standing.KNOWN, labels
        # Fairness ids are never known, but have a share of the page of their own.
        folded = (fairness_id if knows_flow else OTHER, priority if knows_priority else OTHER)
        return Standing.PROVEN, folded

    def request(self, labels: Names) -> tuple[Standing, Names]:
        """Return the standing of a request's labels, and the labels with unknown names folded.

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
        # A client may combine any two names with a header, so a pair is not known.
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
            names = source()
            _remember(self._models, names.models, now)
            _remember(self._targets, names.targets, now)
            _remember(self._fairness_ids, names.fairness_ids, now)
            _remember(self._priorities, map(str, names.priorities), now)
        for known in (self._models, self._targets, self._fairness_ids, self._priorities):
            _forget(known, now - MEMORY_SECONDS)


def _remember(known: dict[str, float], names: Iterable[str], now: float) -> None:
    for name in names:
        if name in known or (len(known) < MAX_KNOWN and len(name) <= MAX_NAME_CHARS):
            known[name] = now


def _forget(known: dict[str, float], before: float) -> None:
    for name in [name for name, seen_at in known.items() if seen_at < before]:
        del known[name]
