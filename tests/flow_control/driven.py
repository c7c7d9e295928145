"""A flow controller whose requests, endpoints, capacity and time a test controls."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import inf, nan
from typing import Any, ClassVar

from flow_control.manual_loop import ManualLoop

from epp.flow_control import (
    BandSettings,
    Candidate,
    FairnessPolicy,
    FlowControl,
    FlowController,
    FlowSettings,
    NoPlaceError,
    OrderingPolicy,
    Outcome,
    QueuedRequest,
    SaturationDetector,
    UsageLimitPolicy,
)
from epp.flow_control.plugins import Flow
from epp.flow_control.sessions import SessionPlugin
from epp.scheduling import (
    Endpoint,
    GuardRails,
    LLMRequest,
    NullObserver,
    ProfileResult,
    SchedulingResult,
    ScoredEndpoint,
)
from epp.testing import make_endpoint, make_request
from epp_plugins.flow_control import (
    edf_ordering,
    fcfs_ordering,
    global_strict_fairness,
    round_robin_fairness,
)
from tools.harness.controls import control_of

FAILED = "failed"
CANCELLED = "cancelled"


class FlawError(Exception):
    """Raised for a request with a flaw when it is dispatched."""


class World:
    """State that policies and requests read; a test changes it."""

    def __init__(self, capacity: float = 0.0) -> None:
        self.capacity = capacity
        """Number of requests that the pool can have in flight."""
        self.in_flight: list[DrivenCandidate] = []
        self.unfit: set[str] = set()
        """Fairness ids, or sizes as strings, of requests that no endpoint can take."""
        self.asked: Counter[str] = Counter()
        """Number of choices by request id."""
        self.held: set[str] = set()
        """Fairness ids that the fairness policies hold back."""
        self.dispatched: list[str] = []
        """Ids of requests in the order in which they were dispatched or failed."""

    def is_unfit(self, request: LLMRequest) -> bool:
        """Whether no endpoint can take ``request`` now."""
        return not self.unfit.isdisjoint({request.fairness_id, str(request.body_bytes)})

    @property
    def saturation(self) -> float:
        return len(self.in_flight) / self.capacity if self.capacity else inf


class DrivenCandidate(Candidate):
    """A request that records its outcome."""

    def __init__(
        self, world: World, request: LLMRequest, received_at: float, *, flaw: str = ""
    ) -> None:
        self._world = world
        self._request = request
        self._received_at = received_at
        self._flaw = flaw
        self.endpoint: Endpoint | None = None
        self.queued: QueuedRequest | None = None
        """The queued request."""
        self.attributes: Mapping[str, str] = {}
        self.ended: list[str] = []
        """The outcomes; exactly one if all is well."""
        self.empty_pool: bool | None = None
        self.why = ""
        self.error: Exception | None = None
        self.ended_at = 0.0
        self.clock: Callable[[], float] = lambda: 0.0

    @property
    def request(self) -> LLMRequest:
        return self._request

    @property
    def received_at(self) -> float:
        return self._received_at

    @property
    def held_bytes(self) -> int:
        return self._request.body_bytes

    def choose(
        self, endpoints: Sequence[Endpoint], preference: Mapping[Endpoint, float] | None
    ) -> SchedulingResult:
        if not endpoints:
            raise NoPlaceError("the pool has no endpoint")
        self._world.asked[self._request.request_id] += 1
        if self._world.is_unfit(self._request):
            raise NoPlaceError("the filters leave no endpoint")
        if self._flaw == "cannot be chosen for":
            self._world.dispatched.append(self._request.request_id)
            raise FlawError("no profile of that name")
        best = min(endpoints, key=lambda each: each.load.in_flight)
        if preference is not None:
            best = max(endpoints, key=lambda each: preference[each])
        result = ProfileResult("default", [ScoredEndpoint(best, 1.0)])
        return SchedulingResult(primary="default", profiles={"default": result})

    def dispatch(
        self, queued: QueuedRequest, result: SchedulingResult, attributes: Mapping[str, str]
    ) -> None:
        self.queued = queued
        self.attributes = attributes
        self.take(result)

    def take(self, result: SchedulingResult) -> None:
        """Reserve the chosen endpoint."""
        self._world.dispatched.append(self._request.request_id)
        if self._flaw == "cannot be reserved":
            raise FlawError("the reservation is full")
        self.endpoint = result.endpoints[0].endpoint
        self.endpoint.load.start(0.0)
        self._world.in_flight.append(self)
        self._end(Outcome.DISPATCHED)

    def fail(self, error: Exception) -> None:
        self.error = error
        self._end(FAILED)

    def turn_away(self, outcome: Outcome, why: str, *, pool_is_empty: bool) -> None:
        self.why, self.empty_pool = why, pool_is_empty
        self._end(outcome)

    def _end(self, how: str) -> None:
        self.ended.append(how)
        self.ended_at = self.clock()


class RoomDetector(SaturationDetector):
    """Saturation: requests in flight per capacity of the world."""

    type: ClassVar[str] = "room-detector"

    def __init__(self, world: World) -> None:
        self.name = "room"
        self._world = world

    def saturation(self, endpoints: Sequence[Endpoint]) -> float:
        return self._world.saturation


class GivenCeilings(UsageLimitPolicy):
    """Given ceilings by priority; 1.0 for others."""

    type: ClassVar[str] = "given-ceilings"

    def __init__(self, ceilings: Mapping[int, float]) -> None:
        self.name = "given"
        self.by_priority = ceilings

    def ceilings(self, saturation: float, priorities: Sequence[int]) -> Sequence[float]:
        return [self.by_priority.get(priority, 1.0) for priority in priorities]


def key_of(policy: OrderingPolicy, queued: QueuedRequest) -> Any:
    """Return the key of ``policy``, or the flawed key that the request selects."""
    match queued.request.headers.get("key"):
        case "raises":
            raise ZeroDivisionError("a bug in a policy")
        case "is not a number":
            return nan
        case "is a text":
            return "first"
        case "is hidden":  # compares with some, and with others not
            return (queued.enqueued_at, queued.request.headers.get("hidden"))
    return policy.key(queued)


class Ordering(OrderingPolicy):
    """A real policy with the flaws that requests select."""

    type: ClassVar[str] = "driven-ordering"

    def __init__(self, name: str) -> None:
        self.name = name
        self._policy: OrderingPolicy = (
            edf_ordering.EdfOrderingPolicy("edf", edf_ordering.Params())
            if name == "edf"
            else fcfs_ordering.FcfsOrderingPolicy("fcfs", fcfs_ordering.Params())
        )

    def key(self, queued: QueuedRequest) -> Any:
        return key_of(self._policy, queued)


class Strict(global_strict_fairness.GlobalStrictFairnessPolicy):
    """The real policy; holds back the fairness ids that the world lists."""

    def __init__(self, world: World) -> None:
        super().__init__("strict", global_strict_fairness.Params())
        self._world = world

    def refusal(self, request: LLMRequest, now: float) -> str:
        return "not now" if request.fairness_id in self._world.held else ""


class Turns(round_robin_fairness.RoundRobinFairnessPolicy):
    """The real policy; holds back the fairness ids that the world lists."""

    def __init__(self, world: World) -> None:
        super().__init__("turns", round_robin_fairness.Params())
        self._world = world

    def refusal(self, request: LLMRequest, now: float) -> str:
        return "not now" if request.fairness_id in self._world.held else ""


class Observer:
    """Records all events."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []
        self.sessions = 0
        self.removed: list[Flow] = []
        self.faults: list[tuple[str, str]] = []
        self.times: dict[tuple[str, str], list[float]] = {}

    def passed(self, request: LLMRequest) -> None:
        self.seen.append(("passed", request.request_id))

    def rejected(self, request: LLMRequest, outcome: Outcome) -> None:
        self.seen.append((outcome, request.request_id))

    def enqueued(self, queued: QueuedRequest, seconds: float) -> None:
        self.seen.append(("enqueued", queued.request.request_id))

    def left(self, queued: QueuedRequest, outcome: Outcome, seconds: float) -> None:
        self.seen.append((outcome, queued.request.request_id))

    def flow_removed(self, flow: Flow) -> None:
        self.removed.append(flow)

    def plugin_timer(
        self, plugin: str, extension_point: str, slow_call_seconds: float
    ) -> Callable[[float], None]:
        times = self.times.setdefault((plugin, extension_point), [])
        return times.append

    def plugin_failed(self, plugin: str, extension_point: str) -> None:
        self.faults.append((plugin, extension_point))

    def session_ended(self, seconds: float) -> None:
        self.sessions += 1


class Driven:
    """A controller and the calls of its director."""

    def __init__(
        self, world: World | None = None, *, endpoints: int = 1, guards: GuardRails | None = None
    ) -> None:
        self.world = world or World()
        self.loop = ManualLoop()
        self.observer = Observer()
        self.pool: tuple[Endpoint, ...] = ()
        self.try_seconds = 0.0
        """CPU time from one reading to the next; after slow tries, parked requests wait."""
        self._cpu_seconds = 0.0
        self.controller = FlowController(
            pool=lambda: self.pool,
            clock=self.loop.time,
            observer=self.observer,
            cpu_clock=self._cpu_time,
        )
        self.guards = guards or GuardRails(observer=NullObserver(), disable_after=0)
        self.resize(endpoints)

    def _cpu_time(self) -> float:
        self._cpu_seconds += self.try_seconds
        return self._cpu_seconds

    # --- configuration ------------------------------------------------------------------------

    def band(
        self, *, ordering: str | OrderingPolicy = "fcfs", fairness: str | FairnessPolicy = "strict",
        **settings: Any,
    ) -> BandSettings:  # fmt: skip
        """Return settings of a band; a name selects a real policy."""
        order = Ordering(ordering) if isinstance(ordering, str) else ordering
        if isinstance(fairness, str):
            fairness = Turns(self.world) if fairness == "turns" else Strict(self.world)
        return BandSettings(
            ordering=self.guards.guard("OrderingPolicy", order),
            fairness=self.guards.guard("FairnessPolicy", fairness),
            **settings,
        )

    def settings(
        self, default: BandSettings | None = None, *,
        ceilings: Mapping[int, float] | UsageLimitPolicy | None = None,
        detector: SaturationDetector | None = None,
        plugins: Sequence[SessionPlugin] = (),
        **settings: Any,
    ) -> FlowSettings:  # fmt: skip
        """Return settings with the same defaults for all bands."""
        band = default or self.band(floor_share=0.0)
        if not isinstance(ceilings, UsageLimitPolicy):
            ceilings = GivenCeilings(ceilings or {})
        return FlowSettings(
            detector=self.guards.guard("SaturationDetector", detector or RoomDetector(self.world)),
            limits=self.guards.guard("UsageLimitPolicy", ceilings),
            default_band=band,
            negative_band=settings.pop("negative_band", band),
            plugins=tuple(plugins),
            **settings,
        )

    def use(self, settings: FlowSettings | None = None) -> None:
        """Configure the controller."""
        self.controller.use(settings or self.settings())

    @property
    def control(self) -> FlowControl:
        """The flow control that dispatches waiting requests."""
        return control_of(self.controller)

    # --- events -------------------------------------------------------------------------------

    def candidate(
        self, request_id: str, fairness_id: str = "a", *, priority: int = 0, size: int = 0,
        flaw: str = "", headers: Mapping[str, str] | None = None,
    ) -> DrivenCandidate:  # fmt: skip
        """Return a request that arrives now."""
        request = make_request(request_id, headers=headers, prompt=b"x" * size, priority=priority)
        request.fairness_id = fairness_id
        made = DrivenCandidate(self.world, request, self.loop.now, flaw=flaw)
        made.clock = self.loop.time
        return made

    def ask(self, request_id: str, fairness_id: str = "a", *, ttl_seconds: float | None = None,
            **about: Any) -> DrivenCandidate:  # fmt: skip
        """Submit a request."""
        candidate = self.candidate(request_id, fairness_id, **about)
        self.come(candidate, ttl_seconds)
        return candidate

    def come(self, candidate: DrivenCandidate, ttl_seconds: float | None = None) -> None:
        """Do what the director does with a request."""
        flow = self.controller.active
        if flow and (flow.sees_all or not flow.lets_pass(candidate.request)):
            candidate.queued = flow.submit(candidate, ttl_seconds) or candidate.queued
            return
        try:
            result = candidate.choose(self.pool, None)
        except NoPlaceError as error:
            if flow:
                candidate.queued = flow.submit(candidate, ttl_seconds)
            else:
                candidate.fail(error)
            return
        except FlawError as error:
            candidate.fail(error)
            return
        if flow:
            self.controller.passed(candidate.request)
        try:
            candidate.take(result)
        except FlawError as error:
            candidate.fail(error)

    def finish(self, candidate: DrivenCandidate) -> None:
        """End a request in flight."""
        self.world.in_flight.remove(candidate)
        assert candidate.endpoint is not None
        candidate.endpoint.load.end(0.0)
        self.controller.ended(candidate.queued)

    def serve(self, candidate: DrivenCandidate, endpoint: Endpoint) -> None:
        """Report another endpoint than the chosen one as the server of a request."""
        assert candidate.endpoint is not None
        candidate.endpoint.load.end(0.0)
        endpoint.load.start(0.0)
        candidate.endpoint = endpoint
        if candidate.queued is not None:
            self.controller.moved(candidate.queued, endpoint)

    def cancel(self, candidate: DrivenCandidate) -> None:
        """Disconnect the client of a waiting request."""
        assert candidate.queued is not None
        self.controller.cancel(candidate.queued, Outcome.EVICTED_CONTEXT_CANCELLED)
        candidate.ended.append(CANCELLED)

    def room(self, capacity: float) -> None:
        """Set the capacity of the pool and wake the controller."""
        self.world.capacity = capacity
        self.controller.wake()

    def resize(self, endpoints: int) -> None:
        """Set the number of endpoints of the pool."""
        before = self.pool
        more = [make_endpoint(f"default/e-{n}") for n in range(len(before), endpoints)]
        self.pool = (*before[:endpoints], *more)
        for endpoint in before[endpoints:]:
            self.controller.endpoint_removed(endpoint)
        for endpoint in more:
            self.controller.endpoint_added(endpoint)
