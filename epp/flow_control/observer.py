"""Who is told of what flow control does: metrics, mostly."""

from typing import Literal, Protocol

from epp.flow_control.queues import Flow, Outcome, QueuedRequest
from epp.scheduling import LLMRequest


class FlowObserver(Protocol):
    """Hears of every request that flow control has seen, and of its sessions; never raises."""

    def passed(self, request: LLMRequest) -> None:
        """``request`` has been dispatched without having waited."""

    def rejected(self, request: LLMRequest, outcome: Outcome) -> None:
        """``request`` was turned away instead of waiting."""

    def enqueued(self, queued: QueuedRequest, seconds: float) -> None:
        """``queued`` waits from now on; to put it there took ``seconds``."""

    def left(self, queued: QueuedRequest, outcome: Outcome, seconds: float) -> None:
        """``queued`` has waited for ``seconds`` and waits no more."""

    def flow_removed(self, flow: Flow) -> None:
        """``flow`` was idle for long and is forgotten."""

    def plugin_failed(self, plugin: str, extension_point: str) -> None:
        """A session plugin has raised there."""

    def session_ended(self, seconds: float) -> None:
        """A session was open for ``seconds``."""


class RevocationObserver(Protocol):
    """Hears of evictions; never raises."""

    def issued(self, priority: int) -> None:
        """A request of ``priority`` was told to end."""

    def ended(self, outcome: Literal["confirmed", "timed_out"], seconds: float) -> None:
        """It has ended, or was not seen to, ``seconds`` after that."""

    def reclaim(self, *, target: float, pending: float) -> None:
        """So much saturation is to be reclaimed, and so much is on its way."""


class NoRevocations(RevocationObserver):
    """Hears, and tells nobody."""

    def issued(self, priority: int) -> None:
        """Say nothing."""

    def ended(self, outcome: Literal["confirmed", "timed_out"], seconds: float) -> None:
        """Say nothing."""

    def reclaim(self, *, target: float, pending: float) -> None:
        """Say nothing."""
