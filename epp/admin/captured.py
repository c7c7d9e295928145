"""What is kept of a decision, as the request path leaves it.

A few shared references, and what is the decision's own packed into one piece of bytes: 40 scores
take 0.5 us to pack, and their lists would take twice as long again, because memory that is kept is
replaced by memory that is not in the CPU's caches. None leads to an endpoint, a plugin, a prompt or
a header: an endpoint that leaves the pool, or a graph that a reload replaces, is freed although its
decisions are still explained. :mod:`.rendering` makes records of it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from epp.flow_control import QueuedRequest
from epp.parsing.plugins import Usage
from epp.request_control import EndCause, ProfileOutline
from epp.scheduling import EndpointMetrics, LoadValues, ScoreColumns, ShadowPick


class CandidateNames(NamedTuple):
    """What does not change of the candidates; shared by decisions among the same ones."""

    names: Sequence[str]
    addresses: Sequence[str]
    labels: Sequence[Mapping[str, str]]


# Structs: they are made in 0.1 us, a NamedTuple in 0.3. gc=False: nothing in them can refer back.


class Inputs(msgspec.Struct, frozen=True, eq=False, gc=False):
    """The candidates with the values of the decision, in their order."""

    candidates: CandidateNames
    loads: Sequence[LoadValues]
    pages: Sequence[EndpointMetrics]
    doubted: Mapping[str, str] | None
    """States of endpoints that are not healthy, by name; None without outlier detection."""
    decided_at: float
    sequence: int


class CapturedProfile(msgspec.Struct, frozen=True, eq=False, array_like=True):
    """The result of one profile; packed as the tuple of its fields."""

    name: str
    removed: Mapping[str, Sequence[str]]
    """Names of the endpoints that each filter removed, by filter."""
    endpoints: Sequence[str] | None
    """Names of the scored endpoints; None for all candidates."""
    totals: Sequence[float]
    scores: ScoreColumns
    picked: Sequence[str]
    """Names of the picked endpoints, best first."""
    preference: Sequence[float]
    """What flow control added to the totals; empty for nothing."""
    error: str


class Packed(msgspec.Struct, frozen=True, eq=False, array_like=True):
    """What is packed of a decision, as the tuple of its fields."""

    loads: Sequence[LoadValues] = ()
    """One for each candidate."""
    profiles: Sequence[CapturedProfile] = ()
    shadow_profiles: Sequence[CapturedProfile] = ()


pack: Final = msgspec.msgpack.Encoder(enc_hook=float).encode  # scores may be of any number class
_unpack: Final = msgspec.msgpack.Decoder(Packed).decode
NOTHING: Final = pack(Packed())


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
    packed: bytes = NOTHING
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
        """Return what is packed of it."""
        return _unpack(self.packed)

    def seconds(self, now: float) -> float:
        """Return the time from its headers to its end, or to ``now``."""
        return (self.ending.at if self.ending else now) - self.received_at

    def waited(self, queued: QueuedRequest) -> None:
        self.queued = (self.decided_at - queued.enqueued_at, queued.reasons)

    def response_began(self, now: float) -> None:
        if not self.first_byte_at:
            self.first_byte_at = now

    def first_byte(self, began_at: float) -> None:
        self.first_byte_at = began_at

    @property
    def is_dropped(self) -> bool:
        """Whether :meth:`drop` was called."""
        return self.candidates is NO_NAMES and bool(self.endpoint)

    def drop(self) -> None:
        """Drop what is large: its request is in flight, but nobody can look it up any more."""
        self.packed, self.matches, self.notes = NOTHING, None, ()
        self.candidates, self.pages = NO_NAMES, ()


NO_NAMES = CandidateNames((), (), ())
NO_REFUSAL = Refusal("", "", "")
