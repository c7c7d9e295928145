"""What is learned of the fleet as a whole: service times, the mode, and whether to trust them."""

from collections.abc import Callable, Iterable

from epp_plugins.predicted_time.constants import Constants
from epp_plugins.predicted_time.endpoint import EndpointModel, InFlight
from epp_plugins.predicted_time.mode import ModeChoice
from epp_plugins.predicted_time.service import ServiceModel
from epp_plugins.predicted_time.slowness import Slowness, compare
from epp_plugins.predicted_time.state_file import FleetState
from epp_plugins.predicted_time.trust import Trust

_MEAN_SHARE = 0.02
"""Share of the latest request in the mean service."""
_SOLVE_EVERY = 8
"""Least samples from one solution of the regression to the next, and one for each endpoint."""
_OVERDUE_FACTOR, _OVERDUE_SECONDS = 2.0, 0.3
_LEAST_MEAN_SECONDS = 1e-4


class Learner:
    """Learns from first tokens.

    Args:
        constants: Of the model.
    """

    __slots__ = ("constants", "mean_service", "mode", "on_trust", "serial", "slots", "trust")

    def __init__(self, constants: Constants) -> None:
        self.constants = constants
        self.serial = ServiceModel(constants)
        """Service times in serial mode."""
        self.slots = ServiceModel(constants)
        """Service times in slots mode."""
        self.mode = ModeChoice(constants)
        self.trust = Trust(constants)
        self.mean_service = constants.prior_base_seconds + constants.prior_unit_seconds
        """Mean service time of the requests sent, in seconds."""
        self.on_trust: Callable[[bool], None] | None = None
        """Called when predictions begin or cease to be trusted."""

    def use(self, constants: Constants) -> None:
        """Continue with other constants; what was learned stays."""
        self.constants = constants
        self.serial.constants = self.slots.constants = constants
        self.mode.constants = self.trust.constants = constants

    def sent(self, request: InFlight, now: float) -> None:
        """Note what both modes predict for a request that is about to be added."""
        endpoint, units = request.endpoint, request.units
        k, serial = endpoint.serial.factor, self.serial
        ready_at, least = endpoint.serial_wait(serial)
        wait = ready_at - now
        service = k * serial.predict(units, endpoint.decoding)
        request.predicted_serial = (wait if wait > least else least) + service
        k, slots = endpoint.slots_slowness.factor, self.slots
        wait = endpoint.slot_free_at(slots, now) - now
        in_slots = k * slots.predict(units, len(endpoint.requests))
        request.predicted_slots = in_slots + wait if wait > 0.0 else in_slots
        mean = service if self.mode.is_serial else in_slots
        mean = self.mean_service + _MEAN_SHARE * (mean - self.mean_service)
        self.mean_service = max(mean, _LEAST_MEAN_SECONDS)

    def first_token(self, request: InFlight, at: float, endpoints: int) -> bool:
        """Learn from the first token of a pending request; return whether predictions change.

        Args:
            request: The request.
            at: When its first token came.
            endpoints: Number of endpoints in the fleet.
        """
        endpoint, sent_at = request.endpoint, request.sent_at
        began_at = sent_at if sent_at > endpoint.idle_at else endpoint.idle_at
        every = endpoints if endpoints > _SOLVE_EVERY else _SOLVE_EVERY
        has_changed = self._sample(
            self.serial,
            endpoint.serial,
            endpoint.decoding,
            request=request,
            seconds=at - began_at,
            now=at,
            every=every,
        )
        if request.slot_at is not None:
            has_changed |= self._sample(
                self.slots,
                endpoint.slots_slowness,
                request.slot_beside,
                request=request,
                seconds=at - request.slot_at,
                now=at,
                every=every,
            )
        took, mode = at - sent_at, self.mode
        serial, slots = request.predicted_serial, request.predicted_slots
        has_changed |= mode.learn(took, serial, slots)
        if self.trust.learn(took, serial if mode.is_serial else slots):
            self._tell()
        return has_changed

    def overdue(self, request: InFlight, now: float) -> bool:
        """Learn from a first token that is late; return whether the mode changes."""
        took, mode = now - request.sent_at, self.mode
        serial, slots = request.predicted_serial, request.predicted_slots
        predicted = serial if mode.is_serial else slots
        if request.is_overdue or took <= _OVERDUE_FACTOR * predicted + _OVERDUE_SECONDS:
            return False
        request.is_overdue = True
        return mode.learn(took, serial, slots, is_overdue=True)

    def compare(self, endpoints: Iterable[EndpointModel], now: float) -> None:
        """Compare the slowness of all endpoints."""
        mean, each = self.mean_service, list(endpoints)
        compare([one.serial for one in each], now, mean, self.constants)
        compare([one.slots_slowness for one in each], now, mean, self.constants)

    def restore(self, state: FleetState) -> None:
        """Continue from the state of a file."""
        self.serial.restore(state.serial)
        self.slots.restore(state.in_slots)
        self.mode.is_serial = state.is_serial
        self.mode.serial_error = state.serial_error
        self.mode.slots_error = state.slots_error
        self.mean_service = max(state.mean_service, _LEAST_MEAN_SECONDS)

    def _sample(
        self,
        model: ServiceModel,
        slowness: Slowness,
        beside: float,
        *,
        request: InFlight,
        seconds: float,
        now: float,
        every: int,
    ) -> bool:
        constants = self.constants
        units = request.units
        predicted, k = model.predict(units, beside), slowness.factor
        most = constants.clip_factor * k * predicted + constants.clip_seconds
        if not seconds > 0.0:  # also NaN
            seconds = 0.0
        elif seconds > most:
            seconds = most
        slowness.learn(seconds, predicted, now, constants)
        return model.learn(units, beside, predicted, seconds / k, every)

    def _tell(self) -> None:
        if self.on_trust is not None:
            self.on_trust(self.trust.is_given)
