"""The documents of the pages ``/debug/decisions`` and of the file of decisions."""

from typing import Any

import msgspec


class DecisionLine(msgspec.Struct, frozen=True, kw_only=True):
    """A decision, in one line."""

    sequence: int
    """Numbers the decisions of a pool since its start, those that were not recorded included."""
    request_id: str
    decided_at: float
    """Unix time in seconds; of a refused request, when it was refused."""
    model: str
    target_model: str
    endpoint: str
    """Name of the chosen endpoint; "" if the request was refused."""
    address: str
    candidates: int
    """Number of endpoints that the choice was made among."""
    score: float | None
    """Total score of the endpoint; None if it was forced or the request was refused."""
    margin: float | None
    """By how much its score exceeds that of the best other endpoint, below 0 if it is less; None
    without another one."""
    queued_seconds: float | None
    """Time in flow control's queues; None if it did not wait there."""
    decision_seconds: float
    """From the request's headers to the decision."""
    status: int | None
    """HTTP status of the response; None while there is none."""
    first_byte_seconds: float | None
    """From the request's headers to the head of the response, or to its body's first byte if its
    body was seen."""
    duration_seconds: float | None
    """From the request's headers to the end; None while the request is in flight."""
    outcome: str | None
    """Why it ended; None while it is in flight."""
    why: str
    """The decision in one sentence."""
    is_forced: bool = False
    """Whether a signed header has named the endpoint."""


class EndpointInputs(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate, with the values that the decision was made on."""

    endpoint: str
    address: str
    waiting_requests: float
    """Effective load; so are the next two: the scrape, corrected by requests of this process."""
    running_requests: float
    kv_cache_usage: float
    metrics_age_seconds: float | None
    """Age of its metrics; None if it has none."""
    in_flight: int
    """Requests in flight from this process."""
    state: str
    """Its health; ``unwatched`` if outlier detection is off."""
    labels: dict[str, str] = {}
    page: dict[str, Any] = {}
    """The scraped values of :class:`~epp.scheduling.EndpointMetrics` that are not 0 or empty."""


class FilterRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a filter did."""

    name: str
    removed: list[str]
    """Names of the endpoints that it removed."""
    reason: str = ""


class ScorerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a scorer gave."""

    name: str
    weight: float
    values: list[float]
    """One for each of the profile's ``endpoints``, in [0, 1] and without the weight."""


class ProfileRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The run of one profile."""

    name: str
    is_primary: bool
    is_shadow: bool
    filters: list[FilterRecord]
    """In the order in which they ran. The filters inside a composite one, such as a decision tree,
    follow all others."""
    endpoints: list[str]
    """Names of the endpoints that passed the filters."""
    scorers: list[ScorerRecord]
    """Without those that failed, or were disabled."""
    totals: list[float]
    """Weighted sums, in the order of ``endpoints``."""
    picker: str
    picked: list[str]
    """Names of the picked endpoints, best first."""
    ties: int
    """Number of endpoints whose total is that of the picked one."""
    margin: float | None
    """See :class:`DecisionLine`."""
    error: str
    """Why it found no endpoint; "" if it did."""
    preference: list[float] = []
    """What flow control added to the totals, which are then scaled to [0, 10); empty for
    nothing."""


class ShadowRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a shadow profile would have chosen."""

    profile: str
    endpoint: str
    score: float
    margin: float | None
    """Its total minus its total of the endpoint that was chosen; None if it filtered that out."""
    agrees: bool


class ReservationRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The places that the request took in the step of the decision."""

    endpoint: str
    destination: str
    """What the gateway got: addresses, best first."""
    stages: dict[str, str] = {}
    """Endpoints of the other profiles, by profile."""


class PrefixRecord(msgspec.Struct, frozen=True, kw_only=True):
    """How much of the prompt the endpoints held, by the index of the endpoint picker."""

    blocks: dict[str, int]
    """Blocks held, by endpoint; an absent name holds none."""
    total_blocks: int
    block_size: int
    """Tokens per block."""


class DecisionRecord(DecisionLine, frozen=True, kw_only=True):
    """A decision with everything that it was made of, and what came of it."""

    path: str
    stream: bool
    body_bytes: int
    priority: int
    fairness_id: str
    queue_reasons: list[str]
    """Why it was parked, if it was."""
    prompt_tokens: int | None
    """Tokens by the model server's count; None if the response did not report them."""
    completion_tokens: int | None
    cached_tokens: int | None
    predicted_cached_tokens: int | None
    """Tokens of the prompt that the endpoint held, by the index; None without an index."""
    inputs: list[EndpointInputs]
    profiles: list[ProfileRecord]
    reservation: ReservationRecord | None
    """None if the request was refused."""
    stages: dict[str, str]
    """Endpoints of the other profiles, such as a prefill, by profile."""
    shadow: list[ShadowRecord]
    prefix: PrefixRecord | None
    served_by: str
    """Name of the endpoint that served, if it is another one; "" otherwise."""
    served_address: str
    refused_at: str
    """Stage at which the request was refused; "" if it was not."""
    refused_reason: str
    error: str
    """The message in the answer to a refused request."""
    pool: str = ""
    """The pool, where the endpoint picker serves several."""
    notes: list[str] = []
    """What plugins say about the decision."""


class DecisionsPage(msgspec.Struct, frozen=True, kw_only=True):
    """The page ``/debug/decisions``."""

    decisions: list[DecisionLine]
    """Newest first."""
    newest: int
    """Sequence number of the newest decision, recorded or not."""
    kept: int
    """Number of decisions in memory."""
    sampled: float
    """Share of the decisions that was recorded, since the oldest one that is kept."""
