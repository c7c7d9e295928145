"""Counters by model: scheduling attempts and rewrites.

Model names that do not fit on the page are folded into ``other`` (:mod:`.label_sets`). Attempts
have endpoint labels, too: the series of an endpoint that has left the pool are removed after
several scrapes have seen their last value.
"""

import asyncio
import collections
from collections.abc import Callable
from typing import Final

from epp.observability.known_names import OTHER, KnownNames, Standing
from epp.observability.label_sets import Labels, LabelSet, LabelSets
from epp.observability.metric_children import Counter
from epp.observability.metric_families import Family, Maker
from epp.observability.page_budget import PageBudget, SeriesClaim
from epp.scheduling import Endpoint

DEPARTED_SECONDS: Final = 300.0
"""How long the series of a removed endpoint are kept: Prometheus's lookback period."""


_Key = tuple[str, str, str]
"""Name and address of an endpoint, and the target model."""


class _Counted(LabelSet):
    """One counter."""

    __slots__ = ("_family", "_removed", "counter")

    def __init__(
        self,
        family: Family[Counter],
        labels: Labels,
        claim: SeriesClaim,
        removed: Callable[[Labels], None],
    ) -> None:
        super().__init__(labels, claim)
        self._family = family
        self._removed = removed
        self.counter = family.labels(*labels)

    @property
    def activity(self) -> float:
        return self.counter.value

    def retry(self) -> None:
        """Do nothing: it uses no children of other sets."""

    def remove(self) -> None:
        self._family.remove(*self.labels)
        self._removed(self.labels)


class Attempts:
    """Counts scheduling attempts; a ``PoolListener``."""

    def __init__(self, make: Maker, budget: PageBudget, names: KnownNames) -> None:
        family = make.counter(
            "scheduler_attempts_total",
            "Scheduling attempts; status is success or failure.",
            ("status", "target_model_name", "endpoint_name", "namespace", "port"),
        )

        def judge(labels: Labels) -> tuple[Standing, Labels]:
            status, model, *endpoint = labels
            return names.model(model), (status, OTHER, *endpoint)

        self._sets: LabelSets[_Counted] = LabelSets(
            budget,
            judge=judge,
            last=lambda labels: (labels[0], OTHER, OTHER, OTHER, OTHER),
            make=lambda labels, claim: _Counted(family, labels, claim, self._forget),
            cost=lambda labels: family.cost(*labels),
            is_detail=True,
        )
        self._bound: dict[_Key, Counter] = {}
        """Counters that were not folded into ``other``."""
        self._keys: dict[Labels, _Key] = {}
        """Keys of ``_bound``, by labels."""
        self._by_endpoint: dict[Labels, set[Labels]] = {}
        """Their labels, by those of the endpoint."""
        self._present: collections.Counter[Labels] = collections.Counter()
        """Number of endpoints of the pool with these labels."""
        self._departed: dict[Labels, asyncio.TimerHandle] = {}

    def succeeded(self, target_model: str, endpoint: Endpoint) -> None:
        """Count a choice of ``endpoint``."""
        # An address may pass to another pod, whose name is a label of its own.
        key = (endpoint.name, endpoint.address, target_model)
        counter = self._bound.get(key)
        if counter is None:
            counter = self._bind(key, endpoint)
        counter.inc()

    def failed(self, target_model: str) -> None:
        """Count an attempt that found no endpoint."""
        self._sets.bind(("failure", target_model, "", "", "")).counter.inc()

    def endpoint_added(self, endpoint: Endpoint) -> None:
        """Keep the series of an endpoint that has come back."""
        labels = _labels(endpoint)
        self._present[labels] += 1
        timer = self._departed.pop(labels, None)
        if timer is not None:
            timer.cancel()

    def endpoint_removed(self, endpoint: Endpoint) -> None:
        """Remove the series of ``endpoint`` after :data:`DEPARTED_SECONDS`."""
        labels = _labels(endpoint)
        self._present[labels] -= 1
        if self._present[labels] > 0:  # one of the same name has come at another address
            return
        del self._present[labels]
        loop = asyncio.get_running_loop()
        self._departed[labels] = loop.call_later(DEPARTED_SECONDS, self._remove, labels)

    def _bind(self, key: _Key, endpoint: Endpoint) -> Counter:
        parts = _labels(endpoint)
        labels = ("success", key[2], *parts)
        bound = self._sets.bind(labels)
        if bound.labels == labels:
            before = self._keys.get(labels)
            if before is not None:  # its address has changed
                del self._bound[before]
            self._bound[key] = bound.counter
            self._keys[labels] = key
            self._by_endpoint.setdefault(parts, set()).add(labels)
        return bound.counter

    def _remove(self, endpoint: Labels) -> None:
        del self._departed[endpoint]
        own = ("success", OTHER, *endpoint)
        for labels in (*self._by_endpoint.get(endpoint, ()), own):
            self._sets.drop(labels)

    def _forget(self, labels: Labels) -> None:
        key = self._keys.pop(labels, None)
        if key is None:
            return
        del self._bound[key]
        of_endpoint = self._by_endpoint[labels[2:]]
        of_endpoint.discard(labels)
        if not of_endpoint:
            del self._by_endpoint[labels[2:]]


class Rewrites:
    """Counts the requests whose model an InferenceModelRewrite has replaced."""

    def __init__(self, make: Maker, budget: PageBudget, names: KnownNames) -> None:
        family = make.counter(
            "model_rewrite_decisions_total",
            "Requests whose model an InferenceModelRewrite has replaced.",
            ("model_rewrite_name", "model_name", "target_model"),
        )

        def judge(labels: Labels) -> tuple[Standing, Labels]:
            rewrite, model, target = labels
            standing = names.model(model)
            known = model if standing is Standing.KNOWN else OTHER
            return standing, (rewrite, known, target)

        self._sets: LabelSets[_Counted] = LabelSets(
            budget,
            judge=judge,
            last=lambda _: (OTHER, OTHER, OTHER),
            make=lambda labels, claim: _Counted(family, labels, claim, lambda _: None),
            cost=lambda labels: family.cost(*labels),
        )

    def rewritten(self, rewrite: str, model: str, target: str) -> None:
        """Count a request whose ``model`` was replaced by ``target``."""
        self._sets.bind((rewrite, model, target)).counter.inc()


def _labels(endpoint: Endpoint) -> Labels:
    namespace, _, name = endpoint.name.rpartition("/")
    return name, namespace, endpoint.address.rpartition(":")[2]
