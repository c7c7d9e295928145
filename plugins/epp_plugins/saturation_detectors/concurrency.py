"""``concurrency-detector``: measures saturation by the requests or tokens in flight from this EPP.

For ``n`` endpoints, each with a capacity of ``maxConcurrency`` requests or ``maxTokenConcurrency``
tokens::

    requests: pool = requests in flight / (n * maxConcurrency)
    tokens:   pool = tokens in flight / (n * maxTokenConcurrency)
    hybrid:   pool = mean of max(requests / maxConcurrency, tokens / maxTokenConcurrency)

1.0 is full; a pool without endpoints is full, too. As a filter it keeps the endpoints whose
requests (or tokens; in ``hybrid`` both) are below the limit, which is rounded down::

    limit = maxConcurrency * (1 + headroom)    # or maxTokenConcurrency

If no endpoint is left, the profile fails, so this filter is a hard limit. The detector uses no
metrics of model servers, so requests that other clients send to the servers do not count.

Reads:  the endpoints' in-flight load, written by ``inflight-load-producer``, which is added if it
        is not configured.
Example::

    plugins:
      - type: concurrency-detector
        parameters: {concurrencyMode: hybrid, maxConcurrency: 64, maxTokenConcurrency: 200000}
    flowControl:
      saturationDetector: {pluginRef: concurrency-detector}
"""

from collections.abc import Sequence
from math import inf
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from epp.flow_control.plugins import SaturationDetector
from epp.scheduling import AttributeKey, CycleState, Endpoint, Filter, LLMRequest
from epp_plugins.state_keys import InFlightLoad, in_flight_load_of

_NOTHING = InFlightLoad()


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``concurrency-detector``."""

    max_concurrency: Annotated[int, msgspec.Meta(gt=0)] = 100
    """Requests in flight at which an endpoint is full."""
    max_token_concurrency: Annotated[int, msgspec.Meta(gt=0)] = 1_000_000
    """Tokens in flight at which an endpoint is full."""
    concurrency_mode: Literal["requests", "tokens", "hybrid"] = "requests"
    """Quantity that is counted; ``hybrid`` counts both and uses the higher saturation."""
    headroom: Annotated[float, msgspec.Meta(ge=0.0)] = 0.0
    """Fraction by which the filter's limit exceeds the capacity: 0.2 for 20 %."""
    in_flight_load_producer_name: str = ""
    """Producer of the counts; "" for ``inflight-load-producer``."""


class ConcurrencyDetector(SaturationDetector, Filter):
    """Measures saturation by requests and tokens in flight; removes full endpoints."""

    type: ClassVar[str] = "concurrency-detector"
    sees_ends_at_once: ClassVar[bool] = True

    def __init__(self, name: str, params: Params) -> None:
        self.name = name
        self._load = in_flight_load_of(params.in_flight_load_producer_name)
        # Set per instance, unlike the keys of most plugins: it depends on its parameters.
        self.reads: tuple[AttributeKey[Any], ...] = (self._load,)
        self._mode = params.concurrency_mode
        self._requests = params.max_concurrency
        self._tokens = params.max_token_concurrency
        self._request_limit = self._token_limit = inf
        if self._mode != "tokens":
            self._request_limit = _limit(params.max_concurrency, params.headroom)
        if self._mode != "requests":
            self._token_limit = _limit(params.max_token_concurrency, params.headroom)

    def saturation(self, endpoints: Sequence[Endpoint]) -> float:
        if not endpoints:
            return 1.0
        key = self._load
        loads: list[InFlightLoad] = [each.attributes.get(key, _NOTHING) for each in endpoints]
        if self._mode == "requests":
            return sum(load.requests for load in loads) / (len(loads) * self._requests)
        if self._mode == "tokens":
            return sum(load.tokens for load in loads) / (len(loads) * self._tokens)
        most, most_tokens = self._requests, self._tokens
        total = 0.0
        for load in loads:
            by_requests, by_tokens = load.requests / most, load.tokens / most_tokens
            total += by_requests if by_requests > by_tokens else by_tokens
        return total / len(loads)

    def filter(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[Endpoint]:
        key, most, most_tokens = self._load, self._request_limit, self._token_limit
        kept = []
        for endpoint in endpoints:
            load: InFlightLoad = endpoint.attributes.get(key, _NOTHING)
            if load.requests < most and load.tokens < most_tokens:
                kept.append(endpoint)
        return kept


def _limit(full: int, headroom: float) -> float:
    limit = full * (1.0 + headroom)
    return int(limit) if limit < inf else inf
