"""The extension points of flow control."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from epp.flow_control.queues import Flow, InFlight, QueuedRequest
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
    "Share",
    "UsageLimitPolicy",
]

Key = Any
"""What can be compared with ``<``: a number, a tuple of numbers …"""


class SaturationDetector(Plugin):
    """Says how full a pool is.

    While it is full, requests of negative priority are turned away; with queues, all that come
    wait. The one in force stands under ``flowControl.saturationDetector``.

    Attributes:
        sees_ends_at_once: Whether it counts what this endpoint picker has in flight, so that a
            request that ends shows at once, and not when its model server has told of it.
    """

    sees_ends_at_once: ClassVar[bool] = False

    @abstractmethod
    def saturation(self, endpoints: Sequence[Endpoint]) -> float:
        """Return how much of what ``endpoints`` can take is in use.

        At least 0; from 1.0 on the pool is full, and so is one without endpoints.
        """


class OrderingPolicy(Plugin):
    """Orders the requests of one flow. A band names its own under ``orderingPolicyRef``."""

    @abstractmethod
    def key(self, queued: QueuedRequest) -> Key:
        """Return what ``queued`` is ordered by: the smallest goes first, then the earliest.

        Asked once, when it begins to wait; keys of one band are compared with ``<``, also between
        flows.
        """


class Share(NamedTuple):
    """What a flow has of one resource, for operators to look at."""

    used: float
    deserved: float | None = None
    """What it is owed; None if nobody has said."""
    share: float | None = None
    """What it may have now, that and its part of what others leave; None if nothing is divided."""


class FairnessPolicy(Plugin):
    """Orders the flows of one band. A band names its own under ``fairnessPolicyRef``.

    One object may serve several bands; what it keeps for a flow it puts into ``flow.fairness``.

    Attributes:
        keys_age: Whether keys change with time, or with what other flows do; then all are asked for
            anew now and then.
    """

    keys_age: ClassVar[bool] = False

    @abstractmethod
    def keys(self, flows: Sequence[Flow], now: float) -> Sequence[Key]:
        """Return what ``flows`` are ordered by: the smallest goes first.

        Asked for a flow when its head changes and when one of its requests was dispatched.

        Args:
            flows: Flows of one band in which something waits, all of them or one alone;
                ``flow.head`` is their next request.
            now: Seconds of the clock.
        """

    def activated(self, flow: Flow, now: float) -> None:
        """Take note that something waits in ``flow``, after nothing did."""

    def dispatched(self, flow: Flow, queued: QueuedRequest, now: float) -> None:
        """Take note that ``queued`` of ``flow`` goes to an endpoint."""

    def refusal(self, request: LLMRequest, now: float) -> str:
        """Return why ``request`` may not go though there is room; "" if it may.

        Asked of every request of its bands, also of those that would not have to wait. One that is
        refused waits.
        """
        return ""

    def weight(self, fairness_id: str) -> float:
        """Return the weight of a flow in the limits on waiting requests, a number above 0.

        A flow of weight 2 may hold twice as much as one of weight 1 before one of its requests
        gives way. Asked once per flow and configuration, when a limit is reached.
        """
        return 1.0

    def shares(self, flow: Flow, now: float) -> Mapping[str, Share]:
        """Return what ``flow`` has, by resource; asked only when an operator looks."""
        return {}


class UsageLimitPolicy(Plugin):
    """Says up to which saturation each band may go.

    The one in force stands under ``flowControl.usageLimitPolicyPluginRef``.
    """

    @abstractmethod
    def ceilings(self, saturation: float, priorities: Sequence[int]) -> Sequence[float]:
        """Return a ceiling per band: it may go while the saturation is below.

        Args:
            saturation: Of the pool, 1.0 is full.
            priorities: Of the bands there are, from high to low.
        """


class EvictionFilter(Plugin):
    """Says which requests in flight may be evicted for others of a higher priority.

    The one in force stands under ``extensions.flowControl.eviction.filterPluginRef``.
    """

    @abstractmethod
    def accepts(self, request: LLMRequest) -> bool:
        """Return whether ``request`` may be evicted while its answer has not begun.

        Asked once, when it goes to an endpoint.
        """


class EvictionOrder(Plugin):
    """Says who is evicted first.

    The one in force stands under ``extensions.flowControl.eviction.orderPluginRef``.
    """

    @abstractmethod
    def key(self, victim: InFlight) -> Key:
        """Return what ``victim`` is ordered by: the smallest is evicted first.

        Asked of all that may be evicted, whenever some are to be; keys are compared with ``<``.
        """
