"""What the request path keeps of a decision.

It keeps references to shared objects, and the decision's own scores, packed into one bytes object
(:mod:`.captured_results`). None of them leads to an endpoint, a plugin, a prompt or a header: an
endpoint that leaves the pool, or a graph that a reload replaces, is freed although its decisions
are still explained. :mod:`.rendering` makes records from them.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from epp.admin.captured_results import NOTHING, Packed, SoleResult, unpacked
from epp.flow_control import QueuedRequest
from epp.parsing.plugins import Usage
from epp.request_control import EndCause, ProfileOutline
from epp.scheduling import EndpointMetrics, LoadValues, ShadowPick


class CandidateNames(NamedTuple):
    """What does not change of the candidates; shared by decisions among the same ones."""

    names: Sequence[str]
    addresses: Sequence[str]
    labels: Sequence[Mapping[str, str]]


Inputs = tuple[
    CandidateNames,
    Sequence[LoadValues],
    Sequence[EndpointMetrics],
    Mapping[str, str] | None,
    float,
    int,
]
"""The first six fields of a :class:`CapturedDecision`."""


# Structs: they are made in 0.1 us, a NamedTuple in 0.3. gc=False: nothing in them can refer back.


class Ending(msgspec.Struct, frozen=True, eq=False, gc=False):
    """The outcome of a request."""

    at: float
    cause: EndCause
    status: int | None
    served: tuple[str, str] | None
    """Name and address of the endpoint that served, if it is another one than the chosen."""
    usage: Usage | None


class Refusal(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Why no endpoint was chosen."""

    stage: str
    reason: str
    error: str


class CapturedDecision(msgspec.Struct, eq=False, gc=False):
    """One decision, and later its outcome; a :class:`~epp.request_control.RecordedRequest`.

    Times are seconds of the clock of endpoint loads. Texts of clients are as long as they came.
    """

    candidates: CandidateNames
    loads: Sequence[LoadValues]
    """One for each candidate; so is the next."""
    pages: Sequence[EndpointMetrics]
    doubted: Mapping[str, str] | None
    """States of endpoints that are not healthy, by name; None without outlier detection."""
    decided_at: float
    sequence: int
    """Numbers the decisions, those that were not recorded included."""
    size_bytes: int
    """Estimate of its memory."""
    received_at: float
    request_id: str = ""
    model: str = ""
    target_model: str = ""
    path: str = ""
    fairness_id: str = ""
    priority: int = 0
    stream: bool = False
    body_bytes: int = 0
    endpoint: str = ""
    """Name of the chosen endpoint; "" for none."""
    address: str = ""
    destination: str = ""
    """What the gateway gets: addresses, best first."""
    primary: str = ""
    sole: SoleResult | None = None
    """The result of the only profile; None if it is packed."""
    packed: bytes = NOTHING
    """All other results, and those of shadow profiles."""
    outlines: Mapping[str, ProfileOutline] = {}
    matches: Any = None
    """What the default prefix producer found: ``blocks``, ``total_blocks``, ``block_size``."""
    shadow: Sequence[ShadowPick] = ()
    stages: Sequence[tuple[str, str]] = ()
    """Profile and endpoint of each stage before the primary profile."""
    is_forced: bool = False
    """Whether a signed header has named the endpoint."""
    queued: tuple[float, Sequence[str]] | None = None
    """Seconds in flow control's queues, and why it was parked; None if it did not wait."""
    first_byte_at: float = 0.0
    """0.0 until it has come."""
    ending: Ending | None = None
    """None while the request is in flight."""
    refusal: Refusal | None = None
    notes: Sequence[str] = ()
    """Sentences of plugins."""

    def unpacked(self) -> Packed:
        """Return its results."""
        return unpacked(self.packed, self.sole)

    def seconds(self, now: float) -> float:
        """Return the time from its headers to its end, or to ``now``."""
        return (self.ending.at if self.ending else now) - self.received_at

    def waited(self, queued: QueuedRequest) -> None:
        self.queued = (self.decided_at - queued.enqueued_at, queued.reasons)

    @property
    def is_dropped(self) -> bool:
        """Whether :meth:`drop` was called."""
        return self.candidates is NO_NAMES and bool(self.endpoint)

    def drop(self) -> None:
        """Drop what is large: its request is in flight, but nobody can look it up any more."""
        self.sole, self.packed, self.matches, self.notes = None, NOTHING, None, ()
        self.candidates, self.loads, self.pages = NO_NAMES, (), ()


NO_NAMES = CandidateNames((), (), ())
NO_REFUSAL = Refusal("", "", "")
