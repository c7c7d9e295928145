"""The extension points of flow control."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from epp.flow_control.flows import Flow, InFlight, QueuedRequest
from epp.scheduling import Endpoint, LLMRequest, Plugin

__all__ = [
    "EvictionFilter",
    "EvictionOrder",
    "FairnessPolicy",
    "Flow",
    "InFlight",
    "OrderingPolicy",
    "QueuedRequest",
    "SaturationDetector",
    "SessionListener",
    "Share",
    "UsageLimitPolicy",
]

Key = Any
"""Any type that can be compared with ``<``, such as a number or a tuple of numbers."""


class SaturationDetector(Plugin):
    """Measures how full a pool is.

    While the pool is full, requests of negative priority are refused; with flow control, all
    requests wait instead. It is configured under ``flowControl.saturationDetector``.

    Attributes:
        sees_ends_at_once: Whether it counts the requests that this endpoint picker has in flight,
            so that the end of a request shows at once, not only in the server's next metrics.
    """

    sees_ends_at_once: ClassVar[bool] = False

    @abstractmethod
    def saturation(self, endpoints: Sequence[Endpoint]) -> float:
        """Return the used fraction of the capacity of ``endpoints``.

        It is at least 0; from 1.0 on the pool is full. A pool without endpoints is full.
        """


class OrderingPolicy(Plugin):
    """Orders the requests of one flow; configured per band under ``orderingPolicyRef``."""

    @abstractmethod
    def key(self, queued: QueuedRequest) -> Key:
        """Return the key of ``queued``: the smallest is first, then the earliest.

        Called once, when the request is enqueued; keys of one band are compared with ``<``, also
        between flows. ``queued.state()`` holds the values of data producers for the current pool.
        """


class SessionListener(Plugin):
    """Is notified of the sessions that dispatch waiting requests.

    All plugins that implement it are called, whatever their other extension points. A session tries
    waiting requests one after the other, in the order of the bands and their policies; each try is
    a scheduling cycle.
    """

    @abstractmethod
    def session_began(self, now: float) -> None:
        """Note that a session begins, at ``now`` seconds of the event loop's clock."""

    @abstractmethod
    def session_ended(self) -> None:
        """Note that the session ends, in the same step of the event loop."""


class Share(NamedTuple):
    """A flow's share of one resource, as shown to operators."""

    used: float
    deserved: float | None = None
    """The guaranteed amount; None if none is configured."""
    share: float | None = None
    """The current fair share, with its part of unused amounts; None if nothing is divided."""


class FairnessPolicy(Plugin):
    """Orders the flows of one band; configured per band under ``fairnessPolicyRef``.

    One object may serve several bands; it keeps the state of a flow in ``flow.fairness``.

    Attributes:
        keys_age: Whether keys also change with time or because of other flows; then all keys are
            recomputed periodically.
    """

    keys_age: ClassVar[bool] = False

    @abstractmethod
    def keys(self, flows: Sequence[Flow], now: float) -> Sequence[Key]:
        """Return the keys of ``flows``: the smallest is first.

        Called for a flow when its head changes and when one of its requests was dispatched.

        Args:
            flows: Flows of one band with waiting requests, all of them or a single one;
                ``flow.head`` is the next request of a flow.
            now: Time in seconds.
        """

    def activated(self, flow: Flow, now: float) -> None:
        """Note that a request waits in ``flow``, which had none."""

    def dispatched(self, flow: Flow, queued: QueuedRequest, now: float) -> None:
        """Note that ``queued`` of ``flow`` was sent to an endpoint."""

    def refusal(self, request: LLMRequest, now: float) -> str:
        """Return why ``request`` is held back although there is capacity; "" if it is not.

        Called for each request of its bands, also for those that would not have to wait.
        """
        return ""

    def weight(self, fairness_id: str) -> float:
        """Return the weight of a flow for limits on waiting requests, a number above 0.

        A flow of weight 2 may use twice as much of a limit as one of weight 1 before its requests
        are displaced. Called once per flow and configuration, when a limit is reached.
        """
        return 1.0

    def shares(self, flow: Flow, now: float) -> Mapping[str, Share]:
        """Return the shares of ``flow`` by resource; called only to show them to operators."""
        return {}


class UsageLimitPolicy(Plugin):
    """Sets the saturation up to which each band may dispatch.

    It is configured under ``flowControl.usageLimitPolicyPluginRef``.
    """

    @abstractmethod
    def ceilings(self, saturation: float, priorities: Sequence[int]) -> Sequence[float]:
        """Return a ceiling per band, which may dispatch while the saturation is below it.

        Args:
            saturation: The saturation of the pool; 1.0 is full.
            priorities: The priorities of the bands, from high to low.
        """


class EvictionFilter(Plugin):
    """Selects the requests in flight that may be evicted for a higher priority.

    It is configured under ``extensions.flowControl.eviction.filterPluginRef``.
    """

    @abstractmethod
    def accepts(self, request: LLMRequest) -> bool:
        """Return whether ``request`` may be evicted until its response begins.

        Called once, when the request is sent to an endpoint.
        """


class EvictionOrder(Plugin):
    """Orders the requests that may be evicted.

    It is configured under ``extensions.flowControl.eviction.orderPluginRef``.
    """

    @abstractmethod
    def key(self, victim: InFlight) -> Key:
        """Return the key of ``victim``: the smallest is evicted first.

        Called for all candidates at each eviction; keys are compared with ``<``.
        """
