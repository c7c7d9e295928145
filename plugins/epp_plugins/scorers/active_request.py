"""``active-request-scorer``: prefers endpoints to which this EPP has few requests in flight.

For ``c`` requests in flight on an endpoint, and ``max`` the maximum among the candidates::

    score = 1                                    if c <= idleThreshold
    score = (max - c) / max * maxBusyScore       otherwise

An endpoint without data counts as having none in flight. A ``maxBusyScore`` below 1 separates idle
endpoints from the least busy one.

Reads:  ``IN_FLIGHT_LOAD`` (requests), written by ``inflight-load-producer``.
Example::

    plugins:
      - type: active-request-scorer
        parameters: {idleThreshold: 2, maxBusyScore: 0.5}
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from epp.scheduling import AttributeKey, CycleState, Endpoint, LLMRequest, Scorer
from epp_plugins.state_keys import IN_FLIGHT_LOAD, in_flight_load_of


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``active-request-scorer``."""

    idle_threshold: int = 0
    """Maximum requests in flight of an idle endpoint; values below 0 count as 0."""
    max_busy_score: float = 1.0
    """Maximum score of an endpoint that is not idle, 0.0 to 1.0; other values count as 1.0."""
    in_flight_load_producer_name: str = ""
    """Producer of the counts; "" for ``inflight-load-producer``."""
    request_timeout: str = ""
    """Deprecated and ignored: the end of a request is observed, not estimated."""


class ActiveRequestScorer(Scorer):
    """Scores endpoints by the requests that this EPP has in flight there."""

    type: ClassVar[str] = "active-request-scorer"
    reads: ClassVar[tuple[AttributeKey[Any], ...]] = (IN_FLIGHT_LOAD,)

    def __init__(self, name: str, params: Params) -> None:
        self.name = name
        self._load = in_flight_load_of(params.in_flight_load_producer_name)
        # Set per instance, unlike the keys of most plugins: it comes from a parameter.
        self.reads = (self._load,)  # type: ignore[misc]
        self._idle = max(0, params.idle_threshold)
        self._max_busy = params.max_busy_score if 0.0 <= params.max_busy_score <= 1.0 else 1.0

    def score(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[float]:
        key, idle, max_busy = self._load, self._idle, self._max_busy
        counts = [
            0 if (load := endpoint.attributes.get(key)) is None else load.requests
            for endpoint in endpoints
        ]
        most = max(counts)
        if most <= idle:
            return [1.0] * len(counts)
        return [1.0 if count <= idle else (most - count) / most * max_busy for count in counts]
