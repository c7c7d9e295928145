"""``probabilistic-admitter``: refuses more sheddable requests as the pool fills.

Requests of priority 0 and above are always admitted. Of the others a share is refused with 429::

    saturation = mean of max(waiting / queueDepthThreshold, kv cache usage / kvCacheUtilThreshold)
    share      = min(1, saturation**power * k)

With the defaults the share is 1 % at a saturation of 0.13, half at 0.28, and everything from 0.32
on. The values are effective: the last scrape, corrected by the requests that this EPP has sent
since. An endpoint that was never scraped counts as the median of the pool. To ignore one resource,
make its threshold very large.

Reads:  ``waiting_requests`` and ``kv_cache_usage`` of ``endpoint.load``; ``request.priority``.
Example::

    plugins:
      - type: probabilistic-admitter
        parameters: {power: 2, k: 1}
"""

import random
from collections.abc import Sequence
from typing import Annotated, ClassVar

import msgspec

from epp.request_control.plugins import AdmissionDeniedError, Admitter
from epp.scheduling import CycleState, Endpoint, LLMRequest
from epp_plugins.saturation_detectors.utilization import mean_utilization

_Positive = Annotated[float, msgspec.Meta(gt=0.0)]


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``probabilistic-admitter``."""

    queue_depth_threshold: Annotated[int, msgspec.Meta(gt=0)] = 5
    """Waiting requests that equal a saturation of 1."""
    kv_cache_util_threshold: _Positive = 0.8
    """Fraction of the KV cache in use that equals a saturation of 1."""
    power: _Positive = 5.0
    """Exponent of the saturation; higher values make the share grow more suddenly."""
    k: _Positive = 300.0
    """Share at a saturation of 1, before it is limited to 1."""


class ProbabilisticAdmitter(Admitter):
    """Refuses a share of the sheddable requests that grows with the saturation."""

    type: ClassVar[str] = "probabilistic-admitter"

    def __init__(self, name: str, params: Params, rng: random.Random | None = None) -> None:
        self.name = name
        self._params = params
        self._random = rng or random.Random()  # noqa: S311 - sheds load, no secret

    def admit(self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState) -> None:
        if request.priority >= 0 or not endpoints:
            return
        params = self._params
        saturation = mean_utilization(
            endpoints, params.queue_depth_threshold, params.kv_cache_util_threshold
        )
        try:
            # In this order NaN (0 * infinity) stays NaN, which refuses no request.
            share = min(saturation**params.power * params.k, 1.0)
        except OverflowError:
            share = 1.0
        if self._random.random() < share:
            raise AdmissionDeniedError(
                f"turned away by {self.name!r} with a chance of {share:.2f}: the request's priority"
                f" is {request.priority} and the pool's saturation {saturation:.3f}"
            )
