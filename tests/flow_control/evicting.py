"""A pool of slots on a virtual clock, with evictable requests."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar
from unittest.mock import create_autospec

from flow_control.candidates import NotingCandidate
from prometheus_client import CollectorRegistry

from epp.flow_control import (
    EvictionFilter,
    EvictionOrder,
    EvictionSettings,
    FlowControl,
    FlowController,
    FlowObserver,
    FlowSettings,
    InFlight,
    QueuedRequest,
    Revocable,
    SaturationDetector,
)
from epp.flow_control.sessions import SessionPlugin
from epp.flow_control.settings import BandSettings
from epp.observability import RevocationMetrics
from epp.scheduling import Endpoint, GuardRails, NullObserver, Reservation, SchedulingResult
from epp.testing import make_endpoint, make_plugin, make_request
from epp_plugins.flow_control.fcfs_ordering import FcfsOrderingPolicy
from epp_plugins.flow_control.global_strict_fairness import GlobalStrictFairnessPolicy
from epp_plugins.flow_control.priority_then_time_eviction import PriorityThenTimeEvictionOrder
from epp_plugins.flow_control.sheddable_eviction import SheddableEvictionFilter
from epp_plugins.flow_control.static_usage_limit import StaticUsageLimitPolicy
from tools.harness.controls import control_of

SHEDDABLE = make_plugin(SheddableEvictionFilter)
LOWEST_THEN_NEWEST = make_plugin(PriorityThenTimeEvictionOrder)


class Slots(SaturationDetector):
    """Saturation: requests in flight per slot."""

    type: ClassVar[str] = "slots"

    def __init__(self, slots: int) -> None:
        self.name = "slots"
        self.slots = slots

    def saturation(self, endpoints: Sequence[Endpoint]) -> float:
        return sum(endpoint.load.in_flight for endpoint in endpoints) / self.slots


class Client(NotingCandidate, Revocable):
    """A request whose stream ends when it is evicted, unless ``clings``."""

    def __init__(self, pool: "Pool", name: str, priority: int, tenant: str) -> None:
        request = make_request(name)
        request.priority, request.fairness_id = priority, tenant
        super().__init__(request)
        self.clings = False
        self._pool = pool
        self._queued: QueuedRequest | None = None
        self._in_flight: InFlight | None = None
        self._reservation: Reservation | None = None

    @property
    def queued(self) -> QueuedRequest | None:
        return self._queued

    def dispatch(
        self, queued: QueuedRequest, result: SchedulingResult, attributes: Mapping[str, str]
    ) -> None:
        super().dispatch(queued, result, attributes)
        self._queued = queued
        self.begin(result.endpoints[0].endpoint)

    def begin(self, endpoint: Endpoint) -> None:
        """Occupy a slot."""
        self._reservation = Reservation(endpoint.load, self._pool.flow.now())
        self._in_flight = self._pool.flow.evictions.keep(self)

    def begin_response(self) -> None:
        """Begin the response."""
        if self._in_flight is not None:
            self._pool.flow.evictions.spare(self._in_flight)

    def end(self) -> None:
        """Release the slot."""
        assert self._reservation is not None, "it has a place"
        self._reservation.release(self._pool.flow.now())
        self._pool.flow.ended(self._queued, self._in_flight)

    def revoke(self) -> None:
        self.ended.append("evicted")
        if not self.clings:
            self.end()


class Pool:
    """One endpoint with ``slots`` behind flow control; created in the event loop."""

    def __init__(
        self,
        *,
        slots: int = 2,
        eviction: Mapping[str, Any] | None = None,
        policies: tuple[EvictionFilter, EvictionOrder] = (SHEDDABLE, LOWEST_THEN_NEWEST),
        plugins: Sequence[SessionPlugin] = (),
        actions: Sequence[str] = ("allocate",),
        is_on: bool = True,
    ) -> None:
        self.endpoint = make_endpoint()
        self.registry = CollectorRegistry()
        self.guards = GuardRails(observer=NullObserver(), disable_after=3)
        self.detector = Slots(slots)
        loop = asyncio.get_running_loop()
        self.flow = FlowController(
            pool=lambda: (self.endpoint,),
            clock=loop.time,
            observer=create_autospec(FlowObserver, instance=True),
            revocations=RevocationMetrics(self.registry, "pool"),
        )
        self._filter, self._order = policies
        self._plugins, self._actions = tuple(plugins), tuple(actions)
        self.use(eviction or {}, is_on=is_on)

    def use(self, eviction: Mapping[str, Any], *, is_on: bool = True) -> None:
        """Apply other eviction settings, or none."""
        guard = self.guards.guard
        band = BandSettings(
            ordering=guard("OrderingPolicy", make_plugin(FcfsOrderingPolicy)),
            fairness=guard("FairnessPolicy", make_plugin(GlobalStrictFairnessPolicy)),
        )
        self.flow.use(
            FlowSettings(
                detector=guard("SaturationDetector", self.detector),
                limits=guard("UsageLimitPolicy", make_plugin(StaticUsageLimitPolicy)),
                default_band=band,
                negative_band=band,
                plugins=self._plugins,
                actions=self._actions,
                eviction=EvictionSettings(
                    filter=guard("EvictionFilter", self._filter),
                    order=guard("EvictionOrder", self._order),
                    **eviction,
                )
                if is_on
                else None,
            )
        )

    @property
    def control(self) -> FlowControl:
        """The configured flow control."""
        return control_of(self.flow)

    def send(self, name: str, priority: int = 0, *, tenant: str = "someone") -> Client:
        """Submit a request as the director does."""
        client = Client(self, name, priority, tenant)
        control = self.control
        if not control.sees_all and control.lets_pass(client.request):
            self.flow.passed(client.request)
            client.ended.append("Dispatched")
            client.begin(self.endpoint)
        else:
            control.submit(client)
        return client

    async def fill(self, *priorities: int, tenant: str = "someone") -> list[Client]:
        """Send requests that occupy slots, a second apart."""
        clients = []
        for number, priority in enumerate(priorities):
            clients.append(self.send(f"filler-{number}", priority, tenant=tenant))
            await asyncio.sleep(1)
        assert all(client.ended == ["Dispatched"] for client in clients)
        return clients

    def value(self, name: str, **labels: str) -> float:
        """Return the value of an eviction metric."""
        full = f"llm_d_epp_flow_control_{name}"
        return self.registry.get_sample_value(full, {**labels, "inference_pool": "pool"}) or 0.0
