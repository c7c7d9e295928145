"""The cost of one request at each of several endpoints, and its parts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from epp_plugins.predicted_time.constants import Constants
from epp_plugins.predicted_time.learner import Learner

_LONGEST_SHARE = 4
"""One in so many waits, the longest, is not shared."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """What sending one request to one endpoint would take, in seconds."""

    endpoint: str
    """Its key."""
    wait: float
    """Until the endpoint begins with the request; inf while the endpoint is excluded."""
    service: float
    """From then to its first token."""
    delay_to_others: float
    """What it delays others by that wait."""
    eviction: float
    """What it costs to compute the cached blocks again that it evicts."""
    load: float
    """What it takes to load the request's LoRA adapter."""
    uncached_tokens: float
    """Its tokens that the endpoint would have to compute."""
    slowness: float
    """How much slower than the fleet the endpoint is."""

    @property
    def first_token(self) -> float:
        """Until the first token."""
        return self.wait + self.service

    @property
    def cost(self) -> float:
        """What endpoints are compared by; the least is the best."""
        return self.wait + self.service + self.delay_to_others + self.eviction + self.load

    def sentence(self) -> str:
        """Return the prediction for readers."""
        if self.wait == inf:
            return f"{self.endpoint}: excluded for a while after a failure before the first token"
        tokens = f"{self.uncached_tokens:,.0f}".replace(",", " ")
        adapter = f", {_seconds(self.load)} load of the adapter" if self.load else ""
        return (
            f"{self.endpoint}: {_seconds(self.cost)} s expected: {_seconds(self.wait)} wait,"
            f" {_seconds(self.service)} prefill of {tokens} uncached tokens at"
            f" {1.0 / self.slowness:.2g}x speed, {_seconds(self.delay_to_others)} delay to others,"
            f" {_seconds(self.eviction)} evictions{adapter}"
        )


class CostTable:
    """Waits and service times of one request at N endpoints, in seconds.

    Args:
        keys: The endpoints.
        waits: Until each would begin with the request; inf where an endpoint is excluded.
        services: From then to the first token.
        works: The services at the fleet's speed: a second of a slow endpoint is worth less to the
            others than one of a fast endpoint.
        evictions: What each second of prompts evicts there, in seconds to compute it again.
        learner: Has the means of recent requests.
        constants: Of the model.
        loads: Until each has loaded the request's LoRA adapter; empty if none has to.
    """

    __slots__ = (
        "_constants",
        "_shared",
        "evictions",
        "keys",
        "loads",
        "mean_service",
        "services",
        "waits",
        "works",
    )

    def __init__(  # noqa: PLR0917 - keywords take longer, and this is made for each decision
        self,
        keys: Sequence[str],
        waits: Sequence[float],
        services: Sequence[float],
        works: Sequence[float],
        evictions: Sequence[float],
        learner: Learner,
        constants: Constants,
        loads: Sequence[float] = (),
    ) -> None:
        self.keys = keys
        self.waits = waits
        self.services = services
        self.works = works
        self.evictions = evictions
        self.mean_service = mean_service = learner.mean_service
        self._constants = constants
        self.loads = loads
        queue = (learner.mean_held + shared_wait(waits)) / mean_service
        shared = constants.shared_wait_weight * queue * (1.0 + constants.shared_wait_growth * queue)
        most = constants.most_delayed
        self._shared = shared if shared < most else most
        """Services by which a request delays those that wait anywhere, and those to come."""

    def costs(self) -> list[float]:
        """Return N costs; inf where an endpoint is excluded."""
        constants, mean = self._constants, self.mean_service
        weight, most_wait = constants.own_wait_weight, constants.most_delayed * mean
        shared, per_second, most = self._shared, weight / mean, weight * constants.most_delayed
        columns = zip(self.waits, self.services, self.works, self.evictions, strict=True)
        costs = [
            wait
            + evicts * mean
            + work * (shared + evicts)
            + service * (1.0 + (wait * per_second if wait < most_wait else most))
            for wait, service, work, evicts in columns
        ]
        if self.loads:
            return [cost + load for cost, load in zip(costs, self.loads, strict=True)]
        return costs

    def predictions(
        self, tokens: Mapping[str, float], total_tokens: float, slowness: Mapping[str, float]
    ) -> list[Prediction]:
        """Return the parts of N costs.

        Args:
            tokens: Uncached tokens by endpoint.
            total_tokens: Those at endpoints that ``tokens`` lacks.
            slowness: Of each endpoint; 1 for one that is missing.
        """
        return [
            self._prediction(index, cost, tokens.get(key, total_tokens), slowness.get(key, 1.0))
            for index, (key, cost) in enumerate(zip(self.keys, self.costs(), strict=True))
        ]

    def _prediction(self, index: int, cost: float, tokens: float, slowness: float) -> Prediction:
        key, wait, service = self.keys[index], self.waits[index], self.services[index]
        if wait == inf:
            return Prediction(key, wait, service, 0.0, 0.0, 0.0, tokens, slowness)
        eviction = self.evictions[index] * (self.works[index] + self.mean_service)
        load = self.loads[index] if self.loads else 0.0
        delay = cost - wait - service - eviction - load
        return Prediction(key, wait, service, delay, eviction, load, tokens, slowness)


def shared_wait(waits: Sequence[float]) -> float:
    """Return how long requests wait at N endpoints alike, in seconds.

    The mean without the longest quarter, at least one: the queue of a hot prefix, or of a server
    that is slow, hangs or lies, is one that other requests need not join.

    Args:
        waits: Of each endpoint; inf where one is excluded, which does not count.
    """
    ordered = sorted(waits)
    while ordered and ordered[-1] == inf:
        ordered.pop()
    count = len(ordered)
    if count > 1:
        count -= count // _LONGEST_SHARE or 1
    return sum(ordered[:count]) / count if count else 0.0


def _seconds(value: float) -> str:
    return f"{value:.1f}" if value >= 1.0 else f"{value:.2f}"
