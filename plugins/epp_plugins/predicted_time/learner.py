"""Learns about the fleet as a whole: service times, the mode, and whether predictions are good."""

from collections.abc import Callable, Iterable

from epp_plugins.predicted_time.constants import Constants
from epp_plugins.predicted_time.endpoint import EndpointModel, PredictedRequest
from epp_plugins.predicted_time.mode import ModeChoice, logarithm
from epp_plugins.predicted_time.service import ServiceModel
from epp_plugins.predicted_time.slowness import Slowness, compare
from epp_plugins.predicted_time.state_file import FleetState
from epp_plugins.predicted_time.trust import Trust
from epp_plugins.predicted_time.waits import serial_wait, slot_free_at

_MEAN_SHARE = 0.02
"""Share of the latest request in the mean service and in the mean time held."""
_MOST_HELD_SECONDS = 1e3
_CACHED_SHARE = 0.005
"""Share of the latest request in the mean cached share."""
_COMPARE_EVERY = 16
"""Minimum first tokens between updates of the coefficients; larger fleets wait for one each."""
_EARLY = 32
"""Each of the first tokens up to this number is followed by an update."""
_OTHER_MODE_EVERY = 4
_OVERDUE_FACTOR, _OVERDUE_SECONDS = 2.0, 0.3
_LEAST_MEAN_SECONDS = 1e-4


class Learner:
    """Learns from first tokens.

    Args:
        constants: Constants of the model.
    """

    __slots__ = (
        "_comparisons",
        "_requests",
        "_since",
        "cached_share",
        "constants",
        "mean_held",
        "mean_service",
        "mode",
        "on_trust",
        "serial",
        "slots",
        "trust",
    )

    def __init__(self, constants: Constants) -> None:
        self.constants = constants
        self.serial = ServiceModel(constants)
        """Service times in serial mode."""
        self.slots = ServiceModel(constants)
        """Service times in slots mode."""
        self.mode = ModeChoice(constants)
        self.trust = Trust(constants)
        prior = constants.prior_base_seconds + constants.prior_unit_seconds
        self.mean_service = max(prior, _LEAST_MEAN_SECONDS)
        """Mean service time of the requests sent, in seconds."""
        self.cached_share = 0.0
        """Mean share of a prompt that its endpoint had cached, according to the prefix index."""
        self._requests = 0
        """Number of requests in ``cached_share``."""
        self.mean_held = 0.0
        """Mean time for which recent requests were held before they were sent, in seconds."""
        self._since = 0
        """First tokens since the last update."""
        self._comparisons = 0
        self.on_trust: Callable[[bool], None] | None = None
        """Called with True when predictions become trusted, with False when they cease to be."""

    def use(self, constants: Constants) -> None:
        """Continue with other constants; the learned state stays."""
        self.constants = constants
        self.serial.constants = self.slots.constants = constants
        self.mode.constants = self.trust.constants = constants

    def sent(self, request: PredictedRequest, now: float) -> None:
        """Record the predictions of both modes in a request that is about to be added."""
        endpoint, units = request.endpoint, request.units
        k, serial = endpoint.serial.factor, self.serial
        ready_at, least = serial_wait(endpoint, serial, now)
        wait = ready_at - now
        service = k * serial.predict(units, endpoint.decoding + endpoint.others.decoding)
        request.predicted_serial = (wait if wait > least else least) + service
        k, slots = endpoint.slots_slowness.factor, self.slots
        wait = slot_free_at(endpoint, slots, now) - now
        in_slots = k * slots.predict(units, endpoint.in_flight)
        request.predicted_slots = in_slots + wait if wait > 0.0 else in_slots
        request.serial_logarithm = logarithm(request.predicted_serial)
        request.slots_logarithm = logarithm(request.predicted_slots)
        mean = service if self.mode.is_serial else in_slots
        mean = self.mean_service + _MEAN_SHARE * (mean - self.mean_service)
        self.mean_service = max(mean, _LEAST_MEAN_SECONDS)

    def cached(self, share: float) -> None:
        """Record the share of a prompt that is cached at the endpoint to which it is sent."""
        self._requests += 1
        weight = _CACHED_SHARE if self._requests * _CACHED_SHARE > 1.0 else 1.0 / self._requests
        self.cached_share += weight * (min(1.0, max(0.0, share)) - self.cached_share)

    def held(self, seconds: float) -> None:
        """Record how long a request was held before it was sent; 0 if it was sent at once."""
        seconds = min(_MOST_HELD_SECONDS, max(0.0, seconds))
        self.mean_held += _MEAN_SHARE * (seconds - self.mean_held)

    def first_token(self, request: PredictedRequest, at: float, endpoints: int) -> bool:
        """Learn from the first token of a pending request.

        Args:
            request: The request.
            at: When its first token came.
            endpoints: Number of endpoints in the fleet.

        Returns:
            Whether the caller should call :meth:`compare`, because enough has been learned.
        """
        endpoint, sent_at, mode, trust = request.endpoint, request.sent_at, self.mode, self.trust
        # The mode that is not in use learns from some requests only.
        in_both = trust.samples < _EARLY or not trust.samples % _OTHER_MODE_EVERY
        if in_both or mode.is_serial:
            others, idle_at = endpoint.others, endpoint.idle_at
            began_at = sent_at if sent_at > idle_at else idle_at
            if began_at < others.idle_at < at:
                began_at = others.idle_at
            beside = endpoint.decoding + others.decoding
            self._sample(self.serial, endpoint.serial, request.units, beside, at - began_at, at)
        if (in_both or not mode.is_serial) and request.slot_at is not None:
            beside, slowness = request.slot_beside, endpoint.slots_slowness
            self._sample(self.slots, slowness, request.units, beside, at - request.slot_at, at)
        took = logarithm(at - sent_at)
        serial, slots = request.serial_logarithm, request.slots_logarithm
        if trust.learn(took, serial if mode.is_serial else slots) and self.on_trust is not None:
            self.on_trust(trust.is_given)
        self._since += 1
        if mode.learn(took, serial, slots):
            return True
        every = endpoints if endpoints > _COMPARE_EVERY else _COMPARE_EVERY
        return self._since >= every or trust.samples < _EARLY

    def overdue(self, request: PredictedRequest, now: float) -> bool:
        """Learn from a first token that is overdue; return whether the mode has changed."""
        took, mode = now - request.sent_at, self.mode
        predicted = request.predicted_serial if mode.is_serial else request.predicted_slots
        if request.is_overdue or took <= _OVERDUE_FACTOR * predicted + _OVERDUE_SECONDS:
            return False
        request.is_overdue = True
        serial, slots = request.serial_logarithm, request.slots_logarithm
        return mode.learn(logarithm(took), serial, slots, is_overdue=True)

    def compare(self, endpoints: Iterable[EndpointModel], now: float) -> None:
        """Update service times and slowness from the samples so far."""
        self._since = 0
        self._comparisons += 1
        in_both = self._comparisons <= _EARLY or not self._comparisons % _OTHER_MODE_EVERY
        mean, each, is_serial = self.mean_service, list(endpoints), self.mode.is_serial
        if in_both or is_serial:
            self.serial.solve()
            compare([one.serial for one in each], now, mean, self.constants)
        if in_both or not is_serial:
            self.slots.solve()
            compare([one.slots_slowness for one in each], now, mean, self.constants)

    def restore(self, state: FleetState) -> None:
        """Continue from a saved state."""
        self.serial.restore(state.serial)
        self.slots.restore(state.in_slots)
        self.mode.is_serial = state.is_serial
        self.mode.serial_error = state.serial_error
        self.mode.slots_error = state.slots_error
        self.mean_service = max(state.mean_service, _LEAST_MEAN_SECONDS)

    def _sample(  # noqa: PLR0917 - keywords take 0.2 us more
        self,
        model: ServiceModel,
        slowness: Slowness,
        units: float,
        beside: float,
        seconds: float,
        now: float,
    ) -> None:
        constants = self.constants
        predicted, k = model.predict(units, beside), slowness.factor
        most = constants.clip_factor * k * predicted + constants.clip_seconds
        if not seconds > 0.0:  # also NaN
            seconds = 0.0
        elif seconds > most:
            seconds = most
        slowness.learn(seconds, predicted, now, constants)
        model.learn(units, beside, predicted, seconds / k)
