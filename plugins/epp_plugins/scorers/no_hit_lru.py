"""``no-hit-lru-scorer``: spreads prompts that no endpoint has cached over all endpoints, in turn.

A request is cold if no candidate holds a block of its prompt, or if there are no prefix matches.
The ``n`` candidates of a cold request are ranked from 0 to n-1: first those that have never got a
cold request, in the order of the pool, then the others, least recently used first::

    score = 1 - rank / (n - 1)                   # 1.0 for a sole candidate

For all other requests every endpoint scores 0.5. A cold request counts as a use of the endpoint
that it is sent to and, if a prefill profile ran, of that profile's endpoint. If several profiles of
a request use this scorer, the last one decides whether the request was cold. Removed endpoints are
forgotten.

Reads:  ``PREFIX_MATCHES``, written by ``approx-prefix-cache-producer``; ``PREFILL_PROFILE``.
Example::

    plugins:
      - type: no-hit-lru-scorer
        parameters: {lruSize: 2048}
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from itertools import count, islice
from typing import Any, ClassVar, Final

import msgspec

from epp.data_layer.plugins import EndpointListener
from epp.request_control.plugins import PreRequest
from epp.scheduling import CycleState, Endpoint, LLMRequest, SchedulingResult, Scorer, StateKey
from epp_plugins.state_keys import (
    DEFAULT_PREFILL_PROFILE,
    PREFILL_PROFILE,
    PREFIX_MATCHES,
    prefix_matches_of,
)

DEFAULT_LRU_SIZE: Final = 1024
NOT_COLD: Final = 0.5
_DUMPED_ENDPOINTS: Final = 100
"""Maximum endpoints in the dumped state."""


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``no-hit-lru-scorer``."""

    lru_size: int = DEFAULT_LRU_SIZE
    """Maximum endpoints to remember; others count as never used. 0 and less count as 1024."""
    prefix_match_info_producer_name: str = ""
    """Producer of the matches; "" for ``approx-prefix-cache-producer``."""
    prefix_plugin_type: str = ""
    """Deprecated and ignored."""
    prefix_plugin_name: str = ""
    """Deprecated and ignored."""


class NoHitLruScorer(Scorer, PreRequest, EndpointListener):
    """Scores endpoints by the time since their last cold request."""

    type: ClassVar[str] = "no-hit-lru-scorer"
    keeps_result: ClassVar[bool] = True
    reads: ClassVar[tuple[StateKey[Any], ...]] = (PREFIX_MATCHES,)

    def __init__(self, name: str, params: Params) -> None:
        self.name = name
        self._matches = prefix_matches_of(params.prefix_match_info_producer_name)
        # Set per instance, unlike the keys of most plugins: it comes from a parameter.
        self.reads = (self._matches,)  # type: ignore[misc]
        self._size = params.lru_size if params.lru_size > 0 else DEFAULT_LRU_SIZE
        self._is_cold = StateKey[bool](f"is-cold/{name}")
        self._used: OrderedDict[str, int] = OrderedDict()  # by name, oldest first
        self._turns = count(1)

    def score(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[float]:
        is_cold = self._nobody_holds(endpoints, state)
        state.write(self._is_cold, is_cold)
        total = len(endpoints)
        if not is_cold:
            return [NOT_COLD] * total
        if total == 1:
            return [1.0]
        used = self._used.get
        turns = [used(endpoint.name, 0) for endpoint in endpoints]
        scores = [0.0] * total
        last = total - 1
        # The sort is stable: endpoints that were never used (0) stay in the order of the pool.
        for rank, position in enumerate(sorted(range(total), key=turns.__getitem__)):
            scores[position] = 1.0 - rank / last
        return scores

    def pre_request(self, request: LLMRequest, result: SchedulingResult, state: CycleState) -> None:
        if not state.read(self._is_cold):
            return
        self._use(result.endpoints[0].endpoint)
        prefill = result.profiles.get(state.read(PREFILL_PROFILE) or DEFAULT_PREFILL_PROFILE)
        if prefill is not None and prefill.endpoints:
            self._use(prefill.endpoints[0].endpoint)

    def endpoint_added(self, endpoint: Endpoint) -> None:
        """Do nothing: an endpoint is recorded with its first cold request."""

    def endpoint_removed(self, endpoint: Endpoint) -> None:
        self._used.pop(endpoint.name, None)

    def dump_state(self) -> Mapping[str, object]:
        return {"used_oldest_first": list(islice(self._used, _DUMPED_ENDPOINTS))}

    def _nobody_holds(self, endpoints: Sequence[Endpoint], state: CycleState) -> bool:
        matches = state.read(self._matches)
        if matches is None or not matches.blocks:
            return True
        held = matches.blocks.get
        return not any(held(endpoint.name) for endpoint in endpoints)

    def _use(self, endpoint: Endpoint) -> None:
        used = self._used
        used[endpoint.name] = next(self._turns)
        used.move_to_end(endpoint.name)
        if len(used) > self._size:
            used.popitem(last=False)
