"""``latency-slo-admitter``: refuses sheddable requests that no endpoint would serve in time.

A request is refused with 429 only if all of these conditions hold:

* its priority is below 0, and it has an SLO in ``x-llm-d-slo-ttft-ms`` or ``x-llm-d-slo-tpot-ms``
  (or the older ``x-slo-ttft-ms``, ``x-slo-tpot-ms``): a number of milliseconds above 0, optionally
  with a fraction; other values are ignored;
* there is a prediction for at least one endpoint, and no prediction meets both SLOs;
* no endpoint is idle (no running or waiting requests) or cold (less than 2 % of its KV cache in
  use), because these may be faster than predicted.

Predictions come from another plugin. No plugin of this project makes predictions yet; without them
every request is admitted.

Reads:  ``LATENCY_PREDICTIONS`` from the cycle state, if present; ``endpoint.load``;
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
"""Predictions for an endpoint with less KV-cache usage are not used, as in the Go EPP."""


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``latency-slo-admitter``."""

    latency_prediction_info_producer_name: str = ""
    """Producer of the predictions; "" for ``predicted-latency-producer``."""


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
            # Requests sent since the last scrape count as waiting while the slots are unknown.
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
