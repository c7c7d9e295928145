"""The learned model of a fleet: when would each server send a request's first token?

The model is a state machine without I/O. It receives every request that is sent, its first token,
end or failure, and all scrapes, and predicts from them. All times are seconds of one clock.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from epp_plugins.predicted_time.adapters import KnownAdapters
from epp_plugins.predicted_time.constants import DEFAULTS, UNIT_TOKENS, Constants
from epp_plugins.predicted_time.cost_table import CostTable
from epp_plugins.predicted_time.endpoint import EndpointModel, PredictedRequest
from epp_plugins.predicted_time.exclusions import Exclusions
from epp_plugins.predicted_time.learner import Learner
from epp_plugins.predicted_time.state_file import FleetState
from epp_plugins.predicted_time.trust import Trust
from epp_plugins.predicted_time.waits import refresh

NO_TOKENS: Final[Mapping[str, float]] = {}


class FleetModel:
    """Predicts times to the first token, and learns from measured ones.

    Args:
        constants: Constants of the algorithm.
    """

    def __init__(self, constants: Constants = DEFAULTS) -> None:
        self.constants = constants
        self.learner = Learner(constants)
        """What the model has learned about the fleet as a whole."""
        self._endpoints: dict[str, EndpointModel] = {}
        self._restored: dict[str, EndpointModel] = {}
        """Endpoints of a saved state that have not joined the pool since it was loaded."""
        self._adapters = KnownAdapters()
        self._exclusions = Exclusions()
        self._reserved: list[EndpointModel] = []

    @property
    def trust(self) -> Trust:
        """Decides whether predictions are good enough to choose an endpoint by."""
        return self.learner.trust

    @property
    def is_serial(self) -> bool:
        """Whether the fleet's engines compute one prompt after the other."""
        return self.learner.mode.is_serial

    # --- the pool -----------------------------------------------------------------------------

    @property
    def endpoints(self) -> Mapping[str, EndpointModel]:
        """All endpoints by key."""
        return self._endpoints

    def endpoint(self, key: str) -> EndpointModel:
        """Return the endpoint ``key``; a new one starts with the fleet's speed."""
        found = self._endpoints.get(key)
        if found is None:
            found = self._restored.pop(key, None) or EndpointModel(key, self.constants)
            self._endpoints[key] = found
        return found

    def remove(self, key: str) -> None:
        """Forget an endpoint; its requests in flight may still end."""
        self._endpoints.pop(key, None)

    def resume(self, endpoint: EndpointModel) -> None:
        """Continue with an endpoint that was removed and has come back."""
        self._endpoints[endpoint.key] = endpoint
        endpoint.resume(self.constants)

    def forget_others(self) -> None:
        """Forget the requests of other endpoint pickers."""
        for endpoint in self._endpoints.values():
            endpoint.forget_others()

    def slowness(self, endpoint: EndpointModel) -> float:
        """Return how many times slower than the fleet an endpoint is, in the current mode."""
        each = endpoint.serial if self.is_serial else endpoint.slots_slowness
        return each.factor

    # --- decisions ----------------------------------------------------------------------------

    def table(
        self,
        keys: Sequence[str],
        total_tokens: float,
        now: float,
        tokens: Mapping[str, float] = NO_TOKENS,
        target_model: str = "",
    ) -> CostTable:
        """Return the costs of a request at each endpoint.

        Args:
            keys: Keys of N endpoints.
            total_tokens: Uncached tokens of the request at endpoints that ``tokens`` lacks.
            now: Seconds of the clock.
            tokens: Uncached tokens of the request by endpoint.
            target_model: Model or LoRA adapter that the request names; "" if unknown.
        """
        if self._exclusions.endpoints:
            self._exclusions.end(now)
        models, learner, own_tokens = self._endpoints, self.learner, tokens.get
        serial, slots, is_serial = learner.serial, learner.slots, learner.mode.is_serial
        unit, total_units = UNIT_TOKENS, total_tokens / UNIT_TOKENS
        waits, services, works, evictions = [], [], [], []
        evicted = self.constants.eviction_weight * learner.cached_share
        for key in keys:
            endpoint = models.get(key)
            if endpoint is None:
                endpoint = self.endpoint(key)
            if endpoint.is_dirty:
                refresh(endpoint, serial, slots, now, is_serial=is_serial)
            wait, least = endpoint.ready_at - now, endpoint.least_wait
            waits.append(wait if wait > least else least)
            uncached = own_tokens(key)
            units = total_units if uncached is None else uncached / unit
            service = endpoint.base + endpoint.per_unit * units
            services.append(service)
            works.append(service * endpoint.speed)
            evictions.append(evicted * endpoint.pressure)
        loads = self._loads(keys, target_model) if target_model in self._adapters else ()
        return CostTable(keys, waits, services, works, evictions, learner, self.constants, loads)

    def least_service(self, total_tokens: float, tokens: Mapping[str, float] = NO_TOKENS) -> float:
        """Return the shortest service time of a request over all endpoints, in seconds.

        Args:
            total_tokens: Uncached tokens of the request at endpoints that ``tokens`` lacks.
            tokens: Uncached tokens of the request by endpoint.
        """
        learner = self.learner
        model = learner.serial if self.is_serial else learner.slots
        return min(
            (
                self.slowness(endpoint)
                * model.predict(tokens.get(key, total_tokens) / UNIT_TOKENS, 0.0)
                for key, endpoint in self._endpoints.items()
            ),
            default=model.predict(total_tokens / UNIT_TOKENS, 0.0),
        )

    def wait(self, key: str, now: float) -> float:
        """Return the seconds until an endpoint would begin with a further request."""
        return self.table((key,), 0.0, now).waits[0]

    def is_excluded(self, key: str, now: float) -> bool:
        """Return whether the endpoint gets no requests for a while after a failure."""
        if self._exclusions.endpoints:
            self._exclusions.end(now)
        return self.endpoint(key).excluded_until > now

    def has_room(self, key: str, now: float) -> bool:
        """Return whether a held request may be sent to the endpoint."""
        if self.is_excluded(key, now):
            return False
        if self.is_serial:
            return self.wait(key, now) <= self.constants.room_seconds
        endpoint = self.endpoint(key)
        slots = endpoint.slots
        return not slots or endpoint.in_flight < slots + endpoint.probes

    def reserve(self, key: str, uncached_tokens: float, now: float) -> float:
        """Add a held request's service time to the wait of the endpoint that it waits for.

        Returns:
            The added seconds.
        """
        endpoint = self.endpoint(key)
        seconds = self.table((key,), uncached_tokens, now).services[0]
        if not self.is_serial and endpoint.slots:
            seconds = (seconds + endpoint.decode_seconds) / endpoint.slots
        endpoint.reserved_seconds += seconds
        endpoint.is_dirty = True
        self._reserved.append(endpoint)
        return seconds

    def release_reservations(self) -> None:
        """Remove all reservations."""
        for endpoint in self._reserved:
            endpoint.reserved_seconds = 0.0
            endpoint.is_dirty = True
        self._reserved.clear()

    # --- events -------------------------------------------------------------------------------

    def sent(
        self,
        key: str,
        uncached_tokens: float,
        now: float,
        *,
        total_tokens: float = 0.0,
        target_model: str = "",
    ) -> PredictedRequest:
        """Add a request that is sent to the endpoint now, and return it.

        Args:
            key: The endpoint.
            uncached_tokens: Tokens that the endpoint has to compute.
            now: Seconds of the clock.
            total_tokens: Tokens of the whole prompt; 0 if unknown.
            target_model: Model or LoRA adapter that the request names; "" if unknown.
        """
        if total_tokens > 0.0:
            self.learner.cached(1.0 - uncached_tokens / total_tokens)
        endpoint = self.endpoint(key)
        if target_model in self._adapters:
            endpoint.adapters.use(target_model)
        request = PredictedRequest(endpoint, max(0.0, uncached_tokens) / UNIT_TOKENS, now)
        self.learner.sent(request, now)
        endpoint.add(request)
        return request

    def first_token(self, request: PredictedRequest, at: float) -> None:
        """Learn from a request's first token; later calls for the request are ignored."""
        endpoint = request.endpoint
        if not request.is_pending:
            return
        has_changed = request.is_timed and self.learner.first_token(
            request, at, len(self._endpoints)
        )
        endpoint.begin(request, at)
        endpoint.failures = 0
        if has_changed:
            self._compare(at)

    def ended(self, request: PredictedRequest, now: float) -> None:
        """Remove a request that has ended; later calls for the request are ignored."""
        request.endpoint.remove(request, now)

    def failed(self, request: PredictedRequest, now: float) -> None:
        """Remove a request on which its endpoint has failed.

        A failure before the first token excludes the endpoint from decisions for a while.
        """
        endpoint, was_pending = request.endpoint, request.is_pending
        endpoint.remove(request, now)
        if was_pending:
            self._exclusions.add(endpoint, now)

    def scraped(
        self, key: str, *, waiting: float, running: float, kv_usage: float, now: float
    ) -> None:
        """Learn from the load that a server reports."""
        endpoint = self.endpoint(key)
        endpoint.scraped(waiting, running, kv_usage)
        head = endpoint.head
        if head is not None and self.learner.overdue(head, now):
            self._compare(now)

    def adapters_in_use(self, key: str, most: int, in_use: Collection[str]) -> None:
        """Learn from the adapters that a metrics page names.

        Args:
            key: The endpoint.
            most: Adapters that the server can hold at once; 0 if it serves none.
            in_use: Adapters of running and waiting requests.
        """
        names = sorted(in_use)  # a set has another order in each process
        self._adapters.named(names)
        self.endpoint(key).adapters.page(most, names)

    # --- learned state ------------------------------------------------------------------------

    def use(self, constants: Constants) -> None:
        """Continue with other constants; the learned state stays."""
        self.constants = constants
        self.learner.use(constants)
        for endpoint in (*self._endpoints.values(), *self._restored.values()):
            endpoint.constants = constants
            endpoint.is_dirty = True

    def state(self) -> FleetState:
        """Return the learned state, without the requests in flight."""
        learner = self.learner
        return FleetState(
            version=FleetState.current_version(),
            serial=learner.serial.state(),
            in_slots=learner.slots.state(),
            is_serial=learner.mode.is_serial,
            serial_error=learner.mode.serial_error,
            slots_error=learner.mode.slots_error,
            mean_service=learner.mean_service,
            endpoints={key: endpoint.state() for key, endpoint in self._endpoints.items()},
        )

    def restore(self, state: FleetState, now: float) -> None:
        """Continue from what :meth:`state` returned.

        What it has of an endpoint that is not in the pool counts from when the endpoint joins.
        """
        self.learner.restore(state)
        for key, known in state.endpoints.items():
            endpoint = self._endpoints.get(key)
            if endpoint is None:
                endpoint = self._restored[key] = EndpointModel(key, self.constants)
            endpoint.restore(known, now)
        self.learner.compare((*self._endpoints.values(), *self._restored.values()), now)
        for endpoint in self._endpoints.values():
            endpoint.is_dirty = True

    # --- helpers ------------------------------------------------------------------------------

    def _loads(self, keys: Sequence[str], adapter: str) -> Sequence[float]:
        """Return the seconds that each of N endpoints takes to load an adapter."""
        seconds = self.constants.adapter_load_seconds
        return [
            seconds if self._endpoints[key].adapters.has_to_load(adapter) else 0.0 for key in keys
        ]

    def _compare(self, now: float) -> None:
        self.learner.compare(self._endpoints.values(), now)
        for endpoint in self._endpoints.values():
            endpoint.is_dirty = True
