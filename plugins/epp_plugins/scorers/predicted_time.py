"""``predicted-time-scorer``: prefers endpoints where a request costs the least time.

For a wait ``W`` and a service time ``x`` at an endpoint, the mean wait ``W'`` of the candidates
without the longest quarter, plus the mean time for which recent requests were held, and the mean
service ``x'`` of recent requests, all predicted by ``predicted-time-producer``; how much slower
than the fleet the endpoint is, ``k``; the share ``h`` of recent prompts that was cached, and the
endpoint's KV-cache usage ``u``::

    delay     = x / k * min(64, 2 * Q * (1 + Q)) + 0.5 * x * min(64, W / x'),  Q = W' / x'
    evictions = 0.3 * h * (x / k + x') * min(11.5, u / (1 - u))
    cost      = W + x + delay + evictions + load
    score     = least cost / cost      # 0 for an endpoint that is excluded after failures

``W + x`` is the time to the first token. ``delay`` is the time by which the request delays others,
so a cached prefix counts more, the busier the fleet is. ``evictions`` is the time to compute again
the cached blocks that the request evicts. ``load`` is the time to load the request's LoRA adapter
(0.15 s), at an endpoint that has to load it. The endpoint with the least cost scores 1. If it costs
nothing at some endpoints, the others score 0; if it costs nothing at any, the scores are those of
the default profile.

While predictions are not trusted (for the first requests, and while they are worse than a
constant), the scores are those of the default profile::

    score = (2 * queue + 2 * kv-cache-utilization + 3 * prefix) / 7

where each of the three is the score of the plugin of that name (``queue-scorer`` and so on).

Reads:  ``PREDICTED_TIME``; ``PREFIX_MATCHES``; ``endpoint.load``.
Example::

    plugins:
      - type: predicted-time-scorer
"""

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, ClassVar

import msgspec

from epp.scheduling import CycleState, Endpoint, LLMRequest, Scorer, StateKey
from epp_plugins.scorers.least_first import least_first
from epp_plugins.state_keys import (
    PREDICTED_TIME,
    PREFIX_MATCHES,
    PrefixMatches,
    predicted_time_of,
    prefix_matches_of,
)

_QUEUE, _KV_CACHE, _PREFIX = 2 / 7, 2 / 7, 3 / 7
"""Weights of the default profile."""


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``predicted-time-scorer``."""

    predicted_time_producer_name: str = ""
    """Producer of the forecasts; "" for ``predicted-time-producer``."""
    prefix_match_info_producer_name: str = ""
    """Prefix producer for the default scores; "" for ``approx-prefix-cache-producer``."""


class PredictedTimeScorer(Scorer):
    """Scores endpoints by the predicted cost of the request."""

    type: ClassVar[str] = "predicted-time-scorer"
    reads: ClassVar[tuple[StateKey[Any], ...]] = (PREDICTED_TIME, PREFIX_MATCHES)

    def __init__(self, name: str, params: Params) -> None:
        self.name = name
        self._forecast = predicted_time_of(params.predicted_time_producer_name)
        self._matches = prefix_matches_of(params.prefix_match_info_producer_name)
        # Set per instance, unlike the keys of most plugins: they come from parameters.
        self.reads = (self._forecast, self._matches)  # type: ignore[misc]

    def score(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[float]:
        forecast = state.read(self._forecast)
        if forecast is not None and forecast.is_trusted:
            costs = forecast.costs(endpoints)
            least = min(costs)
            if 0.0 < least < inf:
                return [least / cost for cost in costs]
            if least == 0.0 and any(costs):  # a cached prompt at an idle endpoint costs nothing
                return [0.0 if cost else 1.0 for cost in costs]
        return default_scores(endpoints, state.read(self._matches))


def default_scores(endpoints: Sequence[Endpoint], matches: PrefixMatches | None) -> list[float]:
    """Return the default profile's scores of N endpoints, in their order."""
    queues = least_first([endpoint.load.waiting_requests for endpoint in endpoints])
    blocks: Mapping[str, int] = {}
    per_block = 0.0
    if matches is not None and matches.total_blocks:
        blocks, per_block = matches.blocks, _PREFIX / matches.total_blocks
    return [
        _QUEUE * queue
        + _KV_CACHE * (1.0 - endpoint.load.kv_cache_usage)
        + per_block * blocks.get(endpoint.name, 0)
        for queue, endpoint in zip(queues, endpoints, strict=True)
    ]
