"""The learned model of a fleet: when would each server send a request's first token?

The model is a state machine without I/O. It is told of every request that is sent, of first tokens,
ends and failures, and of scrapes, and it predicts from that. All times are seconds of one clock.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from epp_plugins.predicted_time.constants import DEFAULTS, Constants
from epp_plugins.predicted_time.endpoint import EndpointModel, InFlight
from epp_plugins.predicted_time.mode import ModeChoice
from epp_plugins.predicted_time.service import ServiceModel
from epp_plugins.predicted_time.slowness import compare
from epp_plugins.predicted_time.trust import Trust

_MEAN_SHARE = 0.02
"""Share of the latest request in the mean service."""
_SOLVE_EVERY = 8
"""Samples from one solution of the regression to the next."""
_MOST_SAMPLE_SECONDS = 3600.0
_OVERDUE_FACTOR, _OVERDUE_SECONDS = 2.0, 0.3


@dataclass(frozen=True, slots=True)
class Prediction:
    """What sending one request to one endpoint would take, in seconds."""

    wait: float
    """Until the endpoint begins with it; inf while the endpoint is excluded."""
    service: float
    """From then to its first token."""
    delay_to_others: float
    """What it delays others by."""
    slowness: float
    """How much slower than the fleet the endpoint is."""

    @property
    def first_token(self) -> float:
        """Until the first token."""
        return self.wait + self.service

    @property
    def cost(self) -> float:
        """What endpoints are compared by; the least is the best."""
        return self.wait + self.service + self.delay_to_others


class FleetModel:
    """Predicts times to the first token, and learns from those that were.

    Args:
        constants: Of the algorithm.
    """

    def __init__(self, constants: Constants = DEFAULTS) -> None:
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
        self._endpoints: dict[str, EndpointModel] = {}
        self._excluded: list[EndpointModel] = []
        self._reserved: list[EndpointModel] = []

    # --- the pool -----------------------------------------------------------------------------

    @property
    def endpoints(self) -> Mapping[str, EndpointModel]:
        """All endpoints by key."""
        return self._endpoints

    def endpoint(self, key: str) -> EndpointModel:
        """Return the endpoint ``key``; it begins with the fleet's speed if it is new."""
        found = self._endpoints.get(key)
        if found is None:
            found = self._endpoints[key] = EndpointModel(key, self.constants)
        return found

    def remove(self, key: str) -> None:
        """Forget an endpoint; its requests in flight may still end."""
        self._endpoints.pop(key, None)

    # --- decisions ----------------------------------------------------------------------------

    def predict(self, key: str, uncached_tokens: float, now: float) -> Prediction:
        """Predict one request at one endpoint, with the waits of all endpoints as they are."""
        endpoint = self._fresh(key, now)
        waits = [self._wait(each, now) for each in self._refreshed(now)]
        finite = [wait for wait in waits if wait < inf]
        mean_wait = sum(finite) / len(finite) if finite else 0.0
        wait = self._wait(endpoint, now)
        service = endpoint.base + endpoint.per_unit * uncached_tokens / self.constants.unit_tokens
        factor = self._others(mean_wait) + self._own(wait)
        slowness = endpoint.serial if self.mode.is_serial else endpoint.slots_slowness
        return Prediction(wait, service, service * factor, slowness.factor)

    def costs(self, keys: Sequence[str], tokens: Sequence[float], now: float) -> list[float]:
        """Return the cost of a request at each endpoint; inf where it is excluded.

        Args:
            keys: N endpoints.
            tokens: Its uncached tokens at each of them.
            now: Seconds of the clock.
        """
        if self._excluded:
            self._readmit(now)
        constants, models = self.constants, self._endpoints
        per_token = 1.0 / constants.unit_tokens
        serial, slots, is_serial = self.serial, self.slots, self.mode.is_serial
        waits, services = [], []
        for key, uncached in zip(keys, tokens, strict=True):
            endpoint = models.get(key)
            if endpoint is None:
                endpoint = self.endpoint(key)
            if endpoint.is_dirty:
                endpoint.refresh(serial, slots, now, is_serial=is_serial)
            wait = endpoint.ready_at - now
            least = endpoint.least_wait
            waits.append(wait if wait > least else least)
            services.append(endpoint.base + endpoint.per_unit * uncached * per_token)
        total = sum(waits)
        count = len(waits)
        if total == inf:
            finite = [wait for wait in waits if wait < inf]
            total, count = sum(finite), len(finite) or 1
        mean = self.mean_service
        common = 1.0 + self._others(total / count)
        weight = constants.own_wait_weight / mean
        most_wait, most = (
            constants.most_delayed * mean,
            (constants.own_wait_weight * constants.most_delayed),
        )
        return [
            wait + service * (common + (wait * weight if wait < most_wait else most))
            for wait, service in zip(waits, services, strict=True)
        ]

    def least_service(self, tokens: Mapping[str, float], total: float) -> float:
        """Return the least service time of a request over all endpoints, in seconds.

        Args:
            tokens: Its uncached tokens by endpoint.
            total: Its tokens at endpoints that ``tokens`` lacks.
        """
        unit = self.constants.unit_tokens
        model = self.serial if self.mode.is_serial else self.slots
        least = inf
        for key, endpoint in self._endpoints.items():
            slowness = endpoint.serial if self.mode.is_serial else endpoint.slots_slowness
            seconds = slowness.factor * (model.base + model.unit * tokens.get(key, total) / unit)
            least = min(least, seconds)
        return least if least < inf else model.base + model.unit * total / unit

    def has_room(self, key: str, now: float) -> bool:
        """Return whether a held request may be sent to the endpoint."""
        endpoint = self._fresh(key, now)
        if self.mode.is_serial:
            return self._wait(endpoint, now) <= self.constants.room_seconds
        if endpoint.open_until > now:
            return False
        slots = endpoint.slots
        return not slots or len(endpoint.requests) < slots + endpoint.probes

    def reserve(self, key: str, uncached_tokens: float, now: float) -> float:
        """Add a held request's work to the wait of the endpoint that it waits for.

        Returns:
            The seconds that it adds.
        """
        endpoint = self._fresh(key, now)
        seconds = endpoint.base + endpoint.per_unit * uncached_tokens / self.constants.unit_tokens
        if not self.mode.is_serial and endpoint.slots:
            seconds = (seconds + endpoint.decode_seconds) / endpoint.slots
        endpoint.reserved_seconds += seconds
        endpoint.is_dirty = True
        self._reserved.append(endpoint)
        return seconds

    def release_reservations(self) -> None:
        """Remove the work of all reservations."""
        for endpoint in self._reserved:
            endpoint.reserved_seconds = 0.0
            endpoint.is_dirty = True
        self._reserved.clear()

    # --- events -------------------------------------------------------------------------------

    def sent(self, key: str, uncached_tokens: float, now: float) -> InFlight:
        """Return a request that is sent to the endpoint now."""
        endpoint = self.endpoint(key)
        units = max(0.0, uncached_tokens) / self.constants.unit_tokens
        ready_at, least = endpoint.serial_wait(self.serial)
        k, serial = endpoint.serial.factor, self.serial
        service = k * serial.predict(units, endpoint.decoding)
        wait = max(ready_at - now, least)
        slots = endpoint.slots_slowness.factor * self.slots.predict(units, len(endpoint.requests))
        slot_wait = max(0.0, endpoint.slot_free_at(self.slots, now) - now)
        request = endpoint.add(units, now)
        request.predicted_serial = wait + service
        request.predicted_slots = slot_wait + slots
        self.mean_service += _MEAN_SHARE * (
            (service if self.mode.is_serial else slots) - self.mean_service
        )
        return request

    def moved(self, request: InFlight, key: str, now: float) -> InFlight:
        """Return the request in place of ``request``, which another endpoint serves."""
        tokens = request.units * self.constants.unit_tokens
        request.endpoint.remove(request, now)
        return self.sent(key, tokens, now)

    def first_token(self, request: InFlight, at: float) -> None:
        """Learn from a request's first token; later ones are ignored."""
        endpoint = request.endpoint
        if request not in endpoint.pending:
            return
        self._learn(endpoint, request, at)
        endpoint.begin(request, at)
        if endpoint.failures:
            endpoint.failures = 0

    def ended(self, request: InFlight, now: float) -> None:
        """Note the end of a request, however it ended."""
        endpoint = request.endpoint
        if request.first_at is not None and request in endpoint.requests:
            took = max(0.0, now - request.first_at)
            share = self.constants.decode_share if endpoint.decode_seconds else 1.0
            endpoint.decode_seconds += share * (
                min(took, _MOST_SAMPLE_SECONDS) - endpoint.decode_seconds
            )
        endpoint.remove(request, now)

    def failed(self, request: InFlight, now: float) -> None:
        """Exclude an endpoint that has failed with a request, if there was no first token."""
        endpoint = request.endpoint
        was_pending = request in endpoint.pending
        endpoint.remove(request, now)
        if not was_pending:
            return
        constants = self.constants
        seconds = min(
            constants.breaker_most_seconds,
            constants.breaker_seconds * 2.0 ** min(endpoint.failures, 60),
        )
        endpoint.failures += 1
        endpoint.open_until = now + seconds
        endpoint.is_dirty = True
        if endpoint not in self._excluded:
            self._excluded.append(endpoint)

    def scraped(
        self, key: str, *, waiting: float, running: float, kv_usage: float, now: float
    ) -> None:
        """Learn from the load that a server reports."""
        endpoint = self.endpoint(key)
        constants = self.constants
        in_flight = len(endpoint.requests)
        if waiting > 0 and running > 0:
            if endpoint.was_waiting:
                seen = min(running, endpoint.was_waiting_running)
                if seen > endpoint.slots:
                    endpoint.slots = seen
                else:
                    endpoint.slots += constants.decode_share * (seen - endpoint.slots)
            endpoint.was_waiting_running = running
        elif endpoint.slots and running > endpoint.slots:
            endpoint.slots = running
        endpoint.was_waiting = waiting > 0
        endpoint.probes = False
        if endpoint.slots and waiting <= 0 and in_flight >= endpoint.slots:
            endpoint.telling_scrapes += 1
            count = endpoint.telling_scrapes - constants.probe_always
            endpoint.probes = count <= 0 or int(count * constants.probe_share) > int(
                (count - 1) * constants.probe_share
            )
        endpoint.waiting, endpoint.sent_since_scrape = waiting, 0
        if kv_usage != endpoint.kv_usage:
            endpoint.kv_usage = kv_usage
        endpoint.is_dirty = True
        head = next(iter(endpoint.pending), None)
        if head is not None and not head.is_overdue:
            self._check_overdue(head, now)

    def dirty_all(self) -> None:
        """Have every endpoint's prediction computed again."""
        for endpoint in self._endpoints.values():
            endpoint.is_dirty = True

    # --- learning -----------------------------------------------------------------------------

    def _learn(self, endpoint: EndpointModel, request: InFlight, at: float) -> None:
        constants, sent_at = self.constants, request.sent_at
        began_at = sent_at if sent_at > endpoint.idle_at else endpoint.idle_at
        units = request.units
        every = max(_SOLVE_EVERY, len(self._endpoints))
        changed = False
        slot_at = request.slot_at
        for model, slowness, since, beside in (
            (self.serial, endpoint.serial, began_at, endpoint.decoding),
            (self.slots, endpoint.slots_slowness, slot_at, request.slot_beside),
        ):
            if since is None:
                continue
            predicted = model.predict(units, beside)
            k = slowness.factor
            most = constants.clip_factor * k * predicted + constants.clip_seconds
            seconds = at - since
            seconds = 0.0 if not seconds > 0.0 else most if seconds > most else seconds
            slowness.learn(seconds, predicted, at, constants)
            changed |= model.learn(units, beside, predicted, seconds / k, every)
        took = at - sent_at
        mode = self.mode
        changed |= mode.learn(took, request.predicted_serial, request.predicted_slots)
        predicted = request.predicted_serial if mode.is_serial else request.predicted_slots
        if self.trust.learn(took, predicted) and self.on_trust is not None:
            self.on_trust(self.trust.is_given)
        if changed:
            self._compare(at)

    def _compare(self, now: float) -> None:
        endpoints = self._endpoints.values()
        mean = self.mean_service
        compare((each.serial for each in endpoints), now, mean, self.constants)
        compare((each.slots_slowness for each in endpoints), now, mean, self.constants)
        self.dirty_all()

    def _check_overdue(self, request: InFlight, now: float) -> None:
        took = now - request.sent_at
        is_serial = self.mode.is_serial
        predicted = request.predicted_serial if is_serial else request.predicted_slots
        if took <= _OVERDUE_FACTOR * predicted + _OVERDUE_SECONDS:
            return
        request.is_overdue = True
        if self.mode.learn(
            took, request.predicted_serial, request.predicted_slots, is_overdue=True
        ):
            self._compare(now)

    # --- helpers ------------------------------------------------------------------------------

    def _fresh(self, key: str, now: float) -> EndpointModel:
        if self._excluded:
            self._readmit(now)
        endpoint = self.endpoint(key)
        if endpoint.is_dirty:
            endpoint.refresh(self.serial, self.slots, now, is_serial=self.mode.is_serial)
        return endpoint

    def _refreshed(self, now: float) -> Sequence[EndpointModel]:
        return [self._fresh(key, now) for key in tuple(self._endpoints)]

    @staticmethod
    def _wait(endpoint: EndpointModel, now: float) -> float:
        return max(endpoint.ready_at - now, endpoint.least_wait)

    def _others(self, mean_wait: float) -> float:
        constants = self.constants
        return min(
            constants.most_delayed, constants.mean_wait_weight * mean_wait / self.mean_service
        )

    def _own(self, wait: float) -> float:
        constants = self.constants
        return constants.own_wait_weight * min(constants.most_delayed, wait / self.mean_service)

    def _readmit(self, now: float) -> None:
        still = []
        for endpoint in self._excluded:
            if endpoint.open_until > now:
                still.append(endpoint)
            else:
                endpoint.is_dirty = True
        self._excluded = still
