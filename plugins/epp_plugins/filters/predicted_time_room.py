"""``predicted-time-room-filter``: holds a request back until its best endpoint has room for it.

The best endpoint is that of the least cost, see ``predicted-time-scorer``. If it has room, all
endpoints pass, so that the scorer chooses it and the others remain as fallbacks. If not, none
passes: flow control holds the request, and the other endpoints stay free for requests that suit
them better. Use ``predicted-time-scorer`` in the same profile. An endpoint has room while ::

    serial mode:  W <= roomSeconds (0.15)
    slots mode:   requests in flight < K, or <= K while the model probes for more

with the predicted wait ``W``, the learned slots ``K`` and the mode of ``predicted-time-producer``.

A session of flow control tries held requests in their order. A request that has to wait reserves
its predicted work on its best endpoint: ``x`` in serial mode, ``(x + d) / K`` in slots mode. The
reservation adds to the wait that later requests see there, so they do not overtake. Reservations
last until the session ends.

While predictions are not trusted, all endpoints pass. A request that is held is not sent to an
endpoint that outlier detection has ejected. The filter needs the feature gate
``flowControl`` with ``whenFiltered: wait``, the default: without it, requests that would be held
are refused with 429.

Reads:  ``PREDICTED_TIME``.
Example::

    featureGates: [flowControl]
    plugins:
      - type: predicted-time-room-filter
      - type: predicted-time-ordering-policy
      - type: predicted-time-detector
    flowControl:
      saturationDetector: {pluginRef: predicted-time-detector}
      defaultPriorityBand: {orderingPolicyRef: predicted-time-ordering-policy}
"""

from collections.abc import Sequence
from math import inf
from typing import Any, ClassVar

import msgspec

from epp.flow_control.plugins import SessionListener
from epp.scheduling import CycleState, Endpoint, Filter, LLMRequest, StateKey
from epp_plugins.predicted_time import FleetModel
from epp_plugins.state_keys import PREDICTED_TIME, predicted_time_of


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``predicted-time-room-filter``."""

    predicted_time_producer_name: str = ""
    """Producer of the forecasts; "" for ``predicted-time-producer``."""


class PredictedTimeRoomFilter(Filter, SessionListener):
    """Keeps all endpoints, or none while the endpoint of the least cost has no room."""

    type: ClassVar[str] = "predicted-time-room-filter"
    holds: ClassVar[bool] = True
    reads: ClassVar[tuple[StateKey[Any], ...]] = (PREDICTED_TIME,)

    def __init__(self, name: str, params: Params) -> None:
        self.name = name
        self._forecast = predicted_time_of(params.predicted_time_producer_name)
        # Set per instance, unlike the keys of most plugins: it depends on its parameters.
        self.reads = (self._forecast,)  # type: ignore[misc]
        self._is_in_session = False
        self._reserved_in: FleetModel | None = None

    def filter(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[Endpoint]:
        forecast = state.read(self._forecast)
        if forecast is None or not forecast.is_trusted:
            return list(endpoints)
        costs = forecast.costs(endpoints)
        least = min(costs)
        if least == inf:  # all endpoints are excluded after failures, not for lack of room
            return list(endpoints)
        best, model = endpoints[costs.index(least)], forecast.model
        if model.has_room(best.name, forecast.now):
            return list(endpoints)
        if self._is_in_session:
            model.reserve(best.name, forecast.tokens_of(best), forecast.now)
            self._reserved_in = model
        return []

    def session_began(self, now: float) -> None:
        self._is_in_session = True

    def session_ended(self) -> None:
        self._is_in_session = False
        if self._reserved_in is not None:
            self._reserved_in.release_reservations()
            self._reserved_in = None
