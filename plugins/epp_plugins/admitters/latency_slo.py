"""``latency-slo-admitter``: turns sheddable requests away that no endpoint would serve in time.

A request is answered with 429 only if all of this holds:

* its priority is below 0, and it names an SLO in ``x-llm-d-slo-ttft-ms`` or
  ``x-llm-d-slo-tpot-ms`` (or the older ``x-slo-ttft-ms``, ``x-slo-tpot-ms``): a number of
  milliseconds above 0, with a fraction or without; anything else counts as none;
* for at least one endpoint there is a prediction, and none says that both SLOs are met;
* no endpoint is idle (nothing running or waiting there) or cold (less than 2 % of its KV cache in
  use): those may do better than predicted.

Predictions come from another plugin. Nothing that ships with this EPP makes any yet; without them
every request is admitted.

Reads:  ``LATENCY_PREDICTIONS`` from the cycle state, if somebody writes them; ``endpoint.load``;
        ``request.priority`` and headers.
Example::

    plugins:
      - type: latency-slo-admitter
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import msgspec

from epp.request_control.plugins import AdmissionDeniedError, Admitter
from epp.scheduling import CycleState, Endpoint, LLMRequest, StateKey
from epp_plugins.slo_headers import tpot_slo_ms, ttft_slo_ms
from epp_plugins.state_keys import LATENCY_PREDICTIONS, LatencyPrediction

COLD_KV_CACHE_USAGE = 0.02
"""Below this predictions are not relied on, as in the reference."""


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``latency-slo-admitter``."""

    latency_prediction_info_producer_name: str = ""
    """Producer whose predictions are believed; "" for ``predicted-latency-producer``."""


class LatencySloAdmitter(Admitter):
    """Denies sheddable requests whose SLO no endpoint is predicted to meet."""

    type: ClassVar[str] = "latency-slo-admitter"

    def __init__(self, name: str, params: Params) -> None:
        self.name = name
        self._predictions = LATENCY_PREDICTIONS
        if producer := params.latency_prediction_info_producer_name:
            self._predictions = StateKey[Mapping[str, LatencyPrediction]](
                f"LatencyPredictionInfoDataKey/{producer}"
            )

    def admit(self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState) -> None:
        if request.priority >= 0:
            return
        if ttft_slo_ms(request.headers) is None and tpot_slo_ms(request.headers) is None:
            return
        predictions = state.read(self._predictions)
        if not predictions:
            return
        predicted = False
        for endpoint in endpoints:
            load = endpoint.load
            # What was sent since the last page counts as waiting while nobody knows the slots.
            if load.running_requests <= 0 and load.waiting_requests <= 0:
                return
            if load.kv_cache_usage < COLD_KV_CACHE_USAGE:
                return
            prediction = predictions.get(endpoint.name)
            if prediction is not None:
                if prediction.is_ttft_valid and prediction.is_tpot_valid:
                    return
                predicted = True
        if predicted:
            raise AdmissionDeniedError(
                f"turned away by {self.name!r}: the request's priority is {request.priority} and no"
                " endpoint is predicted to meet its SLO"
            )
