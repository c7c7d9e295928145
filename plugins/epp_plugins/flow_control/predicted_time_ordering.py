"""``predicted-time-ordering-policy``: orders by arrival and the least time that a request takes.

For the time of receipt ``t`` and the predicted service time ``x`` of the request at each endpoint::

    key = t + min(x)

Short requests go before long ones, but not for ever: each second of waiting counts as much as one
of service. The key is computed once, when the request is enqueued. While predictions are not
trusted, the order is that of receipt.

Reads:  ``PREDICTED_TIME``.
Example::

    plugins:
      - type: predicted-time-ordering-policy
    flowControl:
      defaultPriorityBand: {orderingPolicyRef: predicted-time-ordering-policy}
"""

from typing import Any, ClassVar

import msgspec

from epp.flow_control.plugins import OrderingPolicy, QueuedRequest
from epp.scheduling import StateKey
from epp_plugins.state_keys import PREDICTED_TIME, predicted_time_of


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``predicted-time-ordering-policy``."""

    predicted_time_producer_name: str = ""
    """Producer of the forecasts; "" for ``predicted-time-producer``."""


class PredictedTimeOrderingPolicy(OrderingPolicy):
    """Orders requests by their arrival and their predicted service time."""

    type: ClassVar[str] = "predicted-time-ordering-policy"
    reads: ClassVar[tuple[StateKey[Any], ...]] = (PREDICTED_TIME,)

    def __init__(self, name: str, params: Params) -> None:
        self.name = name
        self._forecast = predicted_time_of(params.predicted_time_producer_name)
        # An instance's own, unlike other plugins' keys: it comes from its parameters.
        self.reads = (self._forecast,)  # type: ignore[misc]

    def key(self, queued: QueuedRequest) -> float:
        forecast = queued.state().read(self._forecast)
        if forecast is None or not forecast.is_trusted:
            return queued.received_at
        return queued.received_at + forecast.least_service()
