"""What the request path keeps of a decision.

It keeps references to shared objects, and the decision's own scores, packed into one bytes object
(:mod:`.captured_results`). None of them refers to an endpoint, a plugin, a prompt or a header, so
an endpoint that leaves the pool, or a graph that a reload replaces, is freed although its decisions
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
    """Data of the candidates that do not change; shared by decisions among the same candidates."""

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


# Structs: creating one takes 0.1 us, a NamedTuple 0.3. gc=False: they are part of no cycle.


class Ending(msgspec.Struct, frozen=True, eq=False, gc=False):
    """The outcome of a request."""

    at: float
    cause: EndCause
    status: int | None
    served: tuple[str, str] | None
    """Name and address of the endpoint that served, if it is not the chosen one."""
    usage: Usage | None


class Refusal(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Why no endpoint was chosen."""

    stage: str
    reason: str
    error: str


class CapturedDecision(msgspec.Struct, eq=False, gc=False):
    """One decision, and later its outcome; a :class:`~epp.request_control.RecordedRequest`.

    Times are seconds of the clock of endpoint loads. Clients' texts are not shortened.
    """

    candidates: CandidateNames
    loads: Sequence[LoadValues]
    """Load of each candidate; ``pages`` has their metrics in the same order."""
    pages: Sequence[EndpointMetrics]
    doubted: Mapping[str, str] | None
    """States of endpoints that are not healthy, by name; None without outlier detection."""
    decided_at: float
    sequence: int
    """Number of the decision, counting those that were not recorded."""
    size_bytes: int
    """Estimated memory of the decision."""
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
    """Addresses sent to the gateway, best first."""
    primary: str = ""
    sole: SoleResult | None = None
    """The result of the only profile; None if it is packed."""
    packed: bytes = NOTHING
    """All other results, and those of shadow profiles."""
    outlines: Mapping[str, ProfileOutline] = {}
    matches: Any = None
    """Matches of the default prefix producer: ``blocks``, ``total_blocks``, ``block_size``."""
    shadow: Sequence[ShadowPick] = ()
    stages: Sequence[tuple[str, str]] = ()
    """Profile and endpoint of each stage before the primary profile."""
    is_forced: bool = False
    """Whether a signed header named the endpoint."""
    queued: tuple[float, Sequence[str]] | None = None
    """Seconds in flow control's queues, and reasons for parking; None if it did not wait."""
    first_byte_at: float = 0.0
    """Time of the first byte of the response; 0.0 until it has arrived."""
    ending: Ending | None = None
    """Outcome; None while the request is in flight."""
    refusal: Refusal | None = None
    notes: Sequence[str] = ()
    """Explanations by plugins, as sentences."""

    def unpacked(self) -> Packed:
        """Return the results of the decision's profiles."""
        return unpacked(self.packed, self.sole)

    def seconds(self, now: float) -> float:
        """Return the seconds from the request's headers to its end, or to ``now``."""
        return (self.ending.at if self.ending else now) - self.received_at

    def waited(self, queued: QueuedRequest) -> None:
        self.queued = (self.decided_at - queued.enqueued_at, queued.reasons)

    @property
    def is_dropped(self) -> bool:
        """Whether :meth:`drop` was called."""
        return self.candidates is NO_NAMES and bool(self.endpoint)

    def drop(self) -> None:
        """Drop the large fields of a decision that left the ring before its request ended."""
        self.sole, self.packed, self.matches, self.notes = None, NOTHING, None, ()
        self.candidates, self.loads, self.pages = NO_NAMES, (), ()


NO_NAMES = CandidateNames((), (), ())
NO_REFUSAL = Refusal("", "", "")
