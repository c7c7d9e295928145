"""What is kept of a decision, as the request path leaves it.

References to immutable results of the decision and tuples of numbers, none of which leads to an
endpoint, a plugin, a prompt or a header: an endpoint that leaves the pool, or a graph that a reload
replaces, is freed although its decisions are still explained. :mod:`.rendering` makes records of it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from epp.flow_control import QueuedRequest
from epp.request_control import ProfileOutline
from epp.scheduling import EndpointMetrics, ShadowPick

Input = tuple[str, str, Mapping[str, str], EndpointMetrics, float, float, float, int]
"""Name, address, labels, metrics page, effective waiting and running requests, KV-cache usage,
requests in flight from here."""


class CapturedProfile(NamedTuple):
    """The result of one profile."""

    name: str
    removed: Mapping[str, Sequence[str]]
    """Names of the endpoints that each filter removed, by filter."""
    endpoints: Sequence[str] | None
    """Names of the scored endpoints; None for all candidates."""
    totals: Sequence[float]
    scorers: Sequence[tuple[str, float]]
    """Names and weights."""
    columns: Sequence[Sequence[float]]
    """A column of scores for each of them."""
    picked: Sequence[str]
    """Names of the picked endpoints, best first."""
    preference: Sequence[float]
    """What flow control added to the totals; empty for nothing."""
    error: str


class CapturedDecision(msgspec.Struct, eq=False, gc=False):
    """One decision, and later its outcome; a :class:`~epp.request_control.RecordedRequest`.

    Times are seconds of the clock of endpoint loads.
    """

    # gc=False: nothing in it can refer back to it.

    decided_at: float
    inputs: Sequence[Input] = ()
    """The candidates; empty once the ring has dropped them."""
    doubted: Mapping[str, str] | None = None
    """States of endpoints that are not healthy, by name; None without outlier detection."""
    sequence: int = 0
    size_bytes: int = 0
    """Estimate of its memory."""
    request_id: str = ""
    model: str = ""
    target_model: str = ""
    path: str = ""
    stream: bool = False
    body_bytes: int = 0
    priority: int = 0
    fairness_id: str = ""
    received_at: float = 0.0
    endpoint: str = ""
    """Name of the chosen endpoint; "" for none."""
    address: str = ""
    destination: str = ""
    """What the gateway gets: addresses, best first."""
    primary: str = ""
    profiles: Sequence[CapturedProfile] = ()
    outlines: Mapping[str, ProfileOutline] = {}
    shadow: Sequence[ShadowPick] = ()
    shadow_profiles: Sequence[CapturedProfile] = ()
    stages: Sequence[tuple[str, str]] = ()
    """Profile and endpoint of each stage before the primary profile."""
    matches: Any = None
    """What the default prefix producer found: ``blocks``, ``total_blocks``, ``block_size``."""
    queued_seconds: float | None = None
    queue_reasons: Sequence[str] = ()
    first_byte_at: float = 0.0
    """0.0 until it has come."""
    ended_at: float = 0.0
    """0.0 while the request is in flight."""
    status: int | None = None
    outcome: str | None = None
    served: tuple[str, str] | None = None
    """Name and address of the endpoint that served; None until its end."""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    stage: str = ""
    """Where a refused request was refused."""
    reason: str = ""
    error: str = ""

    def waited(self, queued: QueuedRequest) -> None:
        self.queued_seconds = self.decided_at - queued.enqueued_at
        self.queue_reasons = queued.reasons

    def response_began(self, now: float) -> None:
        if not self.first_byte_at:
            self.first_byte_at = now

    def first_byte(self, began_at: float) -> None:
        self.first_byte_at = began_at

    def drop(self) -> None:
        """Drop what is large: its request is in flight, but nobody can look it up any more."""
        self.inputs = self.profiles = self.shadow_profiles = ()
        self.matches = None
