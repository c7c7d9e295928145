"""``predicted-time-detector``: measures saturation by the endpoints that have room.

::

    saturation = 1 - endpoints with room / endpoints

Use it together with ``predicted-time-room-filter``, which defines whether an endpoint has room.
While no endpoint has room, the pool is full, and flow control does not try the waiting requests. A
pool without endpoints is full, too. The saturation is 0, so that requests do not wait, while
predictions are not trusted, and while all endpoints are excluded after failures.

Reads:  the model of ``predicted-time-producer``.
Example::

    plugins:
      - type: predicted-time-detector
    flowControl:
      saturationDetector: {pluginRef: predicted-time-detector}
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import msgspec

from epp.flow_control.plugins import SaturationDetector
from epp.scheduling import Endpoint, StateKey
from epp_plugins.data_producers.predicted_time import model_at
from epp_plugins.state_keys import PREDICTED_TIME, predicted_time_of


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``predicted-time-detector``."""

    predicted_time_producer_name: str = ""
    """Producer whose model is used; "" for ``predicted-time-producer``."""


class PredictedTimeDetector(SaturationDetector):
    """Measures saturation by the share of endpoints without room."""

    type: ClassVar[str] = "predicted-time-detector"
    reads: ClassVar[tuple[StateKey[Any], ...]] = (PREDICTED_TIME,)

    def __init__(self, name: str, params: Params, *, clock: Callable[[], float]) -> None:
        self.name = name
        self._producer = params.predicted_time_producer_name
        self._clock = clock
        # Set per instance, unlike the keys of most plugins: it depends on its parameters.
        self.reads = (predicted_time_of(self._producer),)  # type: ignore[misc]

    def saturation(self, endpoints: Sequence[Endpoint]) -> float:
        if not endpoints:
            return 1.0
        model = model_at(endpoints[0], self._producer)
        if model is None or not model.trust.is_given:
            return 0.0
        now = self._clock()
        if all(model.is_excluded(endpoint.name, now) for endpoint in endpoints):
            return 0.0
        full = sum(not model.has_room(endpoint.name, now) for endpoint in endpoints)
        return full / len(endpoints)
