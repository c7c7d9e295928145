"""The cost of one request at each of several endpoints, and its parts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from epp_plugins.predicted_time.constants import Constants
from epp_plugins.predicted_time.learner import Learner

_LONGEST_SHARE = 4
"""The longest of this many waits is not shared."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """Predicted cost of one request at one endpoint, and its parts, in seconds."""

    endpoint: str
    """Key of the endpoint."""
    wait: float
    """Time until the endpoint begins with the request; inf while the endpoint is excluded."""
    service: float
    """Time from then to the first token."""
    delay_to_others: float
    """Time by which the request delays others."""
    eviction: float
    """Time to compute again the cached blocks that the request evicts."""
    load: float
    """Time to load the request's LoRA adapter."""
    uncached_tokens: float
    """Tokens of the request that the endpoint would have to compute."""
    slowness: float
    """How many times slower than the fleet the endpoint is."""

    @property
    def first_token(self) -> float:
        """Time to the first token."""
        return self.wait + self.service

    @property
    def cost(self) -> float:
        """Sum by which endpoints are compared; the least is best."""
        return self.wait + self.service + self.delay_to_others + self.eviction + self.load

    def sentence(self) -> str:
        """Return the prediction in words."""
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
        keys: Keys of the endpoints.
        waits: Time until each would begin with the request; inf where an endpoint is excluded.
        services: Time from then to the first token.
        works: The services at the fleet's speed: a second of a slow endpoint is worth less to the
            others than one of a fast endpoint.
        evictions: Seconds of computing that each second of prompts evicts from the cache there.
        learner: Has the means of recent requests.
        constants: Constants of the model.
        loads: Time to load the request's LoRA adapter at each; empty if none has to load it.
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
        """Services by which a request delays waiting and coming requests, at any endpoint."""

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
        """Return N costs with their parts.

        Args:
            tokens: Uncached tokens by endpoint.
            total_tokens: Uncached tokens at endpoints that ``tokens`` lacks.
            slowness: Slowness by endpoint; 1 for one that is missing.
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
    """Return the wait that requests have in common at N endpoints, in seconds.

    It is the mean without the longest quarter (at least one), because other requests need not join
    the queue of a hot prefix, or of a server that is slow, hangs or reports wrong values.

    Args:
        waits: Wait at each endpoint; inf, which does not count, where one is excluded.
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
