"""``predicted-time-ordering-policy``: orders by arrival, objective and predicted service time.

For the time of receipt ``t``, the predicted service time ``x`` of the request at each endpoint, and
its objective ``slo`` for the time to first token (header ``x-llm-d-slo-ttft-ms``; old name:
``x-slo-ttft-ms``)::

    key = t + min(x) + sloWeight * slo         # in seconds; slo at most 60

Short requests come before long ones, and urgent ones before those that can wait. No request waits
forever, because each second of waiting counts as much as one of service. A request without the
header, or with a value that is not a number above 0, has the objective ``defaultSloSeconds``. So a
client with a false objective gains at most ``sloWeight * defaultSloSeconds``. The key is computed
once, when the request is enqueued. While predictions are not trusted, ``min(x)`` is 0.

Reads:  ``PREDICTED_TIME``; the header ``x-llm-d-slo-ttft-ms``.
Example::

    plugins:
      - type: predicted-time-ordering-policy
    flowControl:
      defaultPriorityBand: {orderingPolicyRef: predicted-time-ordering-policy}
"""

from typing import Annotated, Any, ClassVar, Final

import msgspec

from epp.flow_control.plugins import OrderingPolicy, QueuedRequest
from epp.scheduling import LLMRequest, StateKey
from epp_plugins.slo_headers import ttft_slo_ms
from epp_plugins.state_keys import PREDICTED_TIME, predicted_time_of

_MOST_SLO_SECONDS: Final = 60.0
"""Maximum objective: the default time to live of a waiting request."""


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``predicted-time-ordering-policy``."""

    predicted_time_producer_name: str = ""
    """Producer of the forecasts; "" for ``predicted-time-producer``."""
    slo_weight: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] = 0.3
    """Fraction of its objective by which a request comes later; 0 to ignore objectives."""
    default_slo_seconds: Annotated[float, msgspec.Meta(gt=0.0, le=_MOST_SLO_SECONDS)] = 10.0
    """Objective of a request without a valid one."""


class PredictedTimeOrderingPolicy(OrderingPolicy):
    """Orders requests by arrival, objective and predicted service time."""

    type: ClassVar[str] = "predicted-time-ordering-policy"
    reads: ClassVar[tuple[StateKey[Any], ...]] = (PREDICTED_TIME,)

    def __init__(self, name: str, params: Params) -> None:
        self.name = name
        self._params = params
        self._forecast = predicted_time_of(params.predicted_time_producer_name)
        # Set per instance, unlike the keys of most plugins: it depends on its parameters.
        self.reads = (self._forecast,)  # type: ignore[misc]

    def key(self, queued: QueuedRequest) -> float:
        key = queued.received_at + self._params.slo_weight * self._slo_seconds(queued.request)
        forecast = queued.state().read(self._forecast)
        if forecast is None or not forecast.is_trusted:
            return key
        return key + forecast.least_service()

    def _slo_seconds(self, request: LLMRequest) -> float:
        slo_ms = ttft_slo_ms(request.headers)
        if slo_ms is None:
            return self._params.default_slo_seconds
        return min(_MOST_SLO_SECONDS, slo_ms / 1000.0)
