"""Messages of flow control between workers: one of them owns the queues, the others ask it.

A request is known by its number, which no request of the same worker has ever had, also not in an
earlier life of that worker. What it says of the request is what policies may read; prompts stay
where they are.
"""

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple

from epp.parsing.plugins import Usage
from epp.scheduling import LLMRequest

LEADS: Final = "flow owner"
"""The sender owns the queues: None. The others ask it (again) for all that they have open."""
WAITS: Final = "flow waits"
"""Whether requests wait, so that the owner wants a :class:`Report` of each event: a bool."""
ASKED: Final = "flow asked"
"""A request comes: an :class:`Asked`."""
CANCELLED: Final = "flow cancelled"
"""A client is gone: the number, and the outcome."""
GRANTED: Final = "flow granted"
"""A request may go: the number, and why it was parked in a queue; None if it was in none."""
REFUSED: Final = "flow refused"
"""A request ends: the number, the outcome, why, and whether the pool is empty."""
REPORTED: Final = "flow report"
"""What became of requests that were granted: a :class:`Report`."""
KEPT: Final = "flow evictable"
"""A request in flight may be evicted: a :class:`Kept`."""
SPARED: Final = "flow spared"
"""It may be evicted no more, as its response has begun: the number."""
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
    """A request that asks to go; times are seconds of the monotonic clock of this host."""

    number: int
    facts: Facts
    received_at: float
    enqueued_at: float
    """When it asked for the first time, perhaps another owner."""
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


class Report(NamedTuple):
    """What has happened at a worker."""

    loads: Mapping[str, bytes]
    """The new parts of plugins that contribute, by name (:mod:`epp.replication.plugins`)."""
    has_news: bool
    """Whether something has happened that may free capacity, such as the end of a request."""
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
