"""Interfaces between flow control and its surroundings."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

from epp.flow_control.flows import Flow, Outcome, QueuedRequest
from epp.scheduling import Endpoint, LLMRequest


class FlowHost(Protocol):
    """The services that the parts of flow control use; the controller implements them."""

    @property
    def observer(self) -> "FlowObserver":
        """Receives the events of requests and sessions."""

    @abstractmethod
    def now(self) -> float:
        """Return the time of the event loop, in seconds."""

    @abstractmethod
    def cpu_time(self) -> float:
        """Return the CPU time that the thread of the event loop has used, in seconds."""

    @abstractmethod
    def pool(self) -> Sequence[Endpoint]:
        """Return the current snapshot of the endpoints."""

    @abstractmethod
    def why_empty(self) -> str:
        """Return why the snapshot is empty."""

    @abstractmethod
    def wake(self) -> None:
        """Open a session in the next turn of the event loop if any request waits."""

    @abstractmethod
    def expired(self, queued: QueuedRequest) -> None:
        """End a request that has waited too long."""


class FlowObserver(Protocol):
    """Receives the events of requests and sessions; never raises."""

    def passed(self, request: LLMRequest) -> None:
        """``request`` was dispatched without waiting."""

    def rejected(self, request: LLMRequest, outcome: Outcome) -> None:
        """``request`` was refused on arrival."""

    def enqueued(self, queued: QueuedRequest, seconds: float) -> None:
        """``queued`` began to wait; enqueueing it took ``seconds``."""

    def left(self, queued: QueuedRequest, outcome: Outcome, seconds: float) -> None:
        """``queued`` left its queue after ``seconds``."""

    def flow_removed(self, flow: Flow) -> None:
        """``flow`` was removed after a long idle time."""

    def plugin_timer(
        self, plugin: str, extension_point: str, slow_call_seconds: float
    ) -> Callable[[float], None] | None:
        """Return a callback for the durations of a session plugin's calls; None to time none."""

    def plugin_failed(self, plugin: str, extension_point: str) -> None:
        """A session plugin failed at an extension point."""

    def session_ended(self, seconds: float) -> None:
        """A session ended after ``seconds``."""


class RevocationObserver(Protocol):
    """Receives the events of evictions; never raises."""

    def issued(self, priority: int) -> None:
        """The eviction of a request of ``priority`` began."""

    def ended(self, outcome: Literal["confirmed", "timed_out"], seconds: float) -> None:
        """An evicted request ended, or its end was not seen, after ``seconds``."""

    def reclaim(self, *, target: float, pending: float) -> None:
        """Evictions have to lower the saturation by ``target``; ``pending`` is under way."""


class NoRevocations(RevocationObserver):
    """Ignores the events of evictions."""

    def issued(self, priority: int) -> None:
        """Do nothing."""

    def ended(self, outcome: Literal["confirmed", "timed_out"], seconds: float) -> None:
        """Do nothing."""

    def reclaim(self, *, target: float, pending: float) -> None:
        """Do nothing."""
