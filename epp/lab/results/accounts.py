"""Accounts of a request by its server, the endpoint picker, and an oracle.

A client's record says when tokens arrived. These say why: how long the server kept the request
waiting, what it really found in its cache, what the endpoint picker expected, and what the best
choice would have been. A join by request id adds them to a `Record`; a simulation knows them.
"""

import msgspec


class ServerAccount(msgspec.Struct, frozen=True, kw_only=True):
    """What the server did with a request; times are seconds of one clock, None: not reached."""

    worker: str = ""
    """Name of the server."""
    arrived_at: float | None = None
    """When the request entered the waiting queue."""
    admitted_at: float | None = None
    """When it left the waiting queue for the first time."""
    first_token_at: float | None = None
    """When its first token was generated."""
    finished_at: float | None = None
    """When its last token was generated."""
    cached_tokens: int | None = None
    """Prompt tokens found in the prefix cache; None if not known."""
    preemptions: int = 0
    """How often it went back to the waiting queue because the KV cache was full."""
    rank: int | None = None
    """Data-parallel rank; None if the server has only one."""

    @property
    def queue_seconds(self) -> float | None:
        """Time in the waiting queue."""
        return _between(self.arrived_at, self.admitted_at)

    @property
    def prefill_seconds(self) -> float | None:
        """Time from the waiting queue to the first token."""
        return _between(self.admitted_at, self.first_token_at)

    @property
    def decode_seconds(self) -> float | None:
        """Time from the first token to the last."""
        return _between(self.first_token_at, self.finished_at)


class EppChoice(msgspec.Struct, frozen=True, kw_only=True):
    """What the endpoint picker decided, and what it expected; None: not recorded."""

    endpoint: str = ""
    """The endpoint that it chose."""
    predicted_cached_tokens: int | None = None
    """Prompt tokens that it expected in the endpoint's prefix cache; in simulations, in that of the
    server that computes the prompt."""
    score: float | None = None
    """Score of the endpoint."""
    decision_seconds: float | None = None
    """Time that the scheduler took."""
    queue_seconds: float | None = None
    """Time in the queue of flow control."""


class OracleChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The best choice for a request, by an oracle that knows everything about the fleet."""

    worker: str = ""
    """The server with the earliest first token."""
    ttft_seconds: float
    """Time to first token on that server."""


def _between(earlier: float | None, later: float | None) -> float | None:
    return None if earlier is None or later is None else later - earlier
