"""The faults of one server at one time."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

_DIGEST_BYTES = 8


@dataclass(slots=True)
class ServerFaults:
    """The faults of a server: `FaultSchedule.state_at` computes them, a test sets single fields.

    A change of `refuse`, `restarts`, `speed`, `model` or `kv_events_restarts`, and a hang amid a
    response, need `FakeServer.inject`; the other fields also take effect when they are set.
    """

    refuse: bool = False
    """Refuse connections; responses in progress are completed."""
    restarts: int = 0
    """Number of restarts so far; each resets the connections and empties the KV cache."""
    loading: bool = False
    """Respond to each request with status 503, as before the model is loaded."""
    model: str | None = None
    """Base model of another server that has taken over the address; None for the server's own."""
    taken_over: bool = False
    """Another server has taken over the address."""
    hang: bool = False
    """Accept all requests and never respond; responses in progress stall."""
    hang_generation: bool = False
    """Accept generation requests and never respond; metrics and the rest work."""
    error_status: int | None = None
    """Respond to generation requests at once with this status."""
    error_share: float = 1.0
    """Share of the generation requests that `error_status` affects."""
    cut_responses: bool = False
    """Close the connection of generation requests after the head of the response."""
    speed: float = 1.0
    """Factor on the speed of the engine."""
    health_status: int | None = None
    """Respond to `/health` with this status."""
    render_status: int | None = None
    """Respond to render requests with this status."""
    garbled_render: bytes | None = None
    """Respond to render requests with this body."""
    garbled_metrics: bool = False
    """Respond to `/metrics` with invalid text."""
    stale_metrics: bool = False
    """Respond to `/metrics` with the page from the beginning of the fault."""
    metrics_delay_seconds: float = 0.0
    """Respond to `/metrics` after this time."""
    metrics_status: int | None = None
    """Respond to `/metrics` with this status."""
    left_out_metrics: tuple[str, ...] = ()
    """Families that `/metrics` lacks, without the prefix of the engine."""
    kv_events_lost_share: float = 0.0
    """Share of the KV-event messages that are not sent, though numbered."""
    kv_events_swapped_share: float = 0.0
    """Share of the KV-event messages that are sent after their successor."""
    kv_events_restarts: int = 0
    """Number of restarts of the KV-event publisher so far; each begins with sequence number 0."""

    def error_status_of(self, number: int) -> int | None:
        """Return the status with which generation request `number` fails; None if it does not."""
        if self.error_status is None or not drawn(self.error_share, f"error/{number}"):
            return None
        return self.error_status


def drawn(share: float, salt: str) -> bool:
    """Return True for a share of all salts; the result for one `salt` is always the same."""
    digest = blake2b(salt.encode(), digest_size=_DIGEST_BYTES).digest()
    return int.from_bytes(digest, "big") / 2.0 ** (8 * _DIGEST_BYTES) < share
