"""Learns how much slower than the fleet each endpoint is.

The slowness ``k`` of an endpoint is the sum of its measured service times divided by the sum of the
predicted ones. Both sums include some pseudo-services at the fleet's speed, and older samples weigh
less. ``k`` is divided by the median of the fleet, and small differences from 1, which may be noise,
count as none. Evidence fades with time, so an endpoint that was slow and is not used drifts back to
1 and is tried again.
"""

from collections.abc import Iterable
from math import exp, log

from epp_plugins.predicted_time.constants import Constants

_LEAST = 0.25
"""Minimum slowness; it limits the advantage of an endpoint that seems to answer at once."""
_LEAST_SERVICE_SECONDS = 0.01
"""Minimum duration of a pseudo-service."""


class Slowness:
    """The evidence about one endpoint in one mode."""

    __slots__ = ("_at", "_measured", "_predicted", "factor")

    def __init__(self) -> None:
        self._measured = self._predicted = 0.0
        self._at = 0.0
        self.factor = 1.0
        """Slowness relative to the fleet, k."""

    def learn(self, measured: float, predicted: float, now: float, constants: Constants) -> None:
        """Add a sample in seconds; ``predicted`` is the time at the fleet's speed."""
        keep, passed = constants.slowness_decay, now - self._at
        if passed > 0.0:  # a clock that jumped back fades nothing
            keep *= 0.5 ** (passed / constants.slowness_half_life_seconds)
            self._at = now
        self._measured = self._measured * keep + measured
        self._predicted = self._predicted * keep + predicted

    def faded(self, now: float, constants: Constants) -> tuple[float, float]:
        """Return the sums of measured and predicted seconds, reduced by their age."""
        keep = self._faded(now, constants)
        return self._measured * keep, self._predicted * keep

    def forget(self) -> None:
        """Start again with the fleet's speed."""
        self._measured = self._predicted = 0.0
        self.factor = 1.0

    def state(self) -> tuple[float, float]:
        """Return the sums of measured and predicted seconds."""
        return self._measured, self._predicted

    def restore(self, measured: float, predicted: float, now: float) -> None:
        """Continue from sums that :meth:`state` returned."""
        self._measured, self._predicted, self._at = measured, predicted, now

    def _faded(self, now: float, constants: Constants) -> float:
        passed = now - self._at
        if passed <= 0.0:  # a clock that jumped back fades nothing
            return 1.0
        return float(0.5 ** (passed / constants.slowness_half_life_seconds))


def compare(
    endpoints: Iterable[Slowness], now: float, mean_service: float, constants: Constants
) -> None:
    """Set ``factor`` of every endpoint, relative to the fleet's median.

    Args:
        endpoints: All endpoints of the fleet.
        now: Seconds of the clock.
        mean_service: Mean service time of the fleet, in seconds.
        constants: Constants of the model.
    """
    pseudo = constants.slowness_pseudo_services * max(mean_service, _LEAST_SERVICE_SECONDS)
    sums = [(each, *each.faded(now, constants)) for each in endpoints]
    known = [measured / predicted for _, measured, predicted in sums if predicted >= pseudo]
    middle = max(sorted(known)[len(known) // 2], _LEAST) if known else 1.0
    threshold, most = constants.slowness_threshold, constants.most_slowness
    for each, measured, predicted in sums:
        factor = (measured / middle + pseudo) / (predicted + pseudo)
        distance = log(factor)
        kept = max(0.0, abs(distance) - threshold)
        factor = exp(kept if distance > 0.0 else -kept)
        each.factor = min(most, max(_LEAST, factor))
