"""Messages of flow control between workers: one of them owns the queues, the others ask it.

A request is identified by a number that its worker never reuses, even after a restart. Messages
carry the fields of a request that policies may read; prompts stay at their worker.
"""

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple

from epp.parsing.plugins import Usage
from epp.scheduling import LLMRequest

LEADS: Final = "flow owner"
"""The sender owns the queues: None. The others send it all their open requests (again)."""
WAITS: Final = "flow waits"
"""Whether requests wait, so that the owner needs a :class:`FlowReport` of each event: a bool."""
ASKED: Final = "flow asked"
"""A request has arrived: an :class:`Asked`."""
CANCELLED: Final = "flow cancelled"
"""A client is gone: the number, and the outcome."""
GRANTED: Final = "flow granted"
"""A request may be sent: the number, and why it was parked in a queue; None if it was in none."""
REFUSED: Final = "flow refused"
"""A request ends: the number, the outcome, why, and whether the pool is empty."""
REPORTED: Final = "flow report"
"""The outcomes of granted requests: a :class:`FlowReport`."""
KEPT: Final = "flow evictable"
"""A request in flight may be evicted: a :class:`Kept`."""
SPARED: Final = "flow spared"
"""It may no longer be evicted, as its response has begun: the number."""
ENDED: Final = "flow ended"
"""It has ended: the number."""
REVOKED: Final = "flow revoked"
"""It is evicted: the number."""

Facts = tuple[Any, ...]
"""A request as a tuple: pickling the object itself takes five times as long."""

_FIELDS: Final = (
    *("request_id", "target_model", "model", "path", "headers", "cache_salt", "stream"),
    *("max_output_tokens", "body_bytes", "priority", "fairness_id"),
)
_facts: Final = attrgetter(*_FIELDS)


def facts_of(request: LLMRequest) -> Facts:
    """Return what policies may read of ``request``: everything but the prompt."""
    return tuple(_facts(request))


def request_of(facts: Facts) -> LLMRequest:
    """Return a request with these facts."""
    return LLMRequest(**dict(zip(_FIELDS, facts, strict=True)))


class Asked(NamedTuple):
    """A request that asks for a grant; times are seconds of the monotonic clock of this host."""

    number: int
    facts: Facts
    received_at: float
    enqueued_at: float
    """When it first asked for a grant, perhaps from a previous owner."""
    ttl_seconds: float | None
    """Its own TTL; None if it has none."""
    held_bytes: int


class Declined(NamedTuple):
    """A request that was granted, but for which the filters left no endpoint."""

    number: int
    why: str
    seconds: float
    """CPU time of the try."""


class Ended(NamedTuple):
    """A request that was granted, and has ended at its endpoint or before it was sent."""

    number: int
    cause: str
    """A value of :class:`~epp.request_control.plugins.EndCause`."""
    usage: Usage | None
    """The tokens of its response; None if unknown."""


class FlowReport(NamedTuple):
    """Events at a worker since its last report."""

    loads: Mapping[str, bytes]
    """The new parts of plugins that contribute, by name (:mod:`epp.replication.plugins`)."""
    has_news: bool
    """Whether an event may have freed capacity, such as the end of a request."""
    settled: Sequence[int] = ()
    """Numbers of requests that were sent to an endpoint, or have failed."""
    declined: Sequence[Declined] = ()
    ended: Sequence[Ended] = ()
    """Only if a policy counts what requests use."""


class Kept(NamedTuple):
    """A request in flight that may be evicted."""

    number: int
    facts: Facts
    dispatched_at: float
