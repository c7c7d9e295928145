"""The documents of the pages ``/debug/decisions`` and of the file of decisions."""

from typing import Any

import msgspec


class DecisionLine(msgspec.Struct, frozen=True, kw_only=True):
    """A decision, in one line."""

    sequence: int
    """Number of the decision in its pool since the start, counting those that were not recorded."""
    request_id: str
    decided_at: float
    """Unix time of the decision or refusal, in seconds."""
    model: str
    target_model: str
    endpoint: str
    """Name of the chosen endpoint; "" if the request was refused."""
    address: str
    candidates: int
    """Number of endpoints among which the choice was made."""
    score: float | None
    """Total score of the endpoint; None if it was forced or the request was refused."""
    margin: float | None
    """Score of the endpoint minus that of the best other endpoint, which may be below 0; None
    without another one."""
    queued_seconds: float | None
    """Time in flow control's queues; None if it did not wait there."""
    decision_seconds: float
    """Time from the request's headers to the decision."""
    status: int | None
    """HTTP status of the response; None while there is none."""
    first_byte_seconds: float | None
    """Time from the request's headers to the head of the response, or to the first byte of its
    body if the body passed through the endpoint picker."""
    duration_seconds: float | None
    """Time from the request's headers to its end; None while the request is in flight."""
    outcome: str | None
    """Why the request ended; None while it is in flight."""
    why: str
    """The decision in one sentence."""
    is_forced: bool = False
    """Whether a signed header named the endpoint."""


class EndpointInputs(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate, with the values on which the decision is based."""

    endpoint: str
    address: str
    waiting_requests: float
    """Effective load, like the next two values: the scraped value, corrected by this process's
    requests."""
    running_requests: float
    kv_cache_usage: float
    metrics_age_seconds: float | None
    """Age of its metrics; None if it has none."""
    in_flight: int
    """Requests in flight from this process."""
    state: str
    """Health of the endpoint; ``unwatched`` if outlier detection is off."""
    labels: dict[str, str] = {}
    page: dict[str, Any] = {}
    """The scraped values of :class:`~epp.scheduling.EndpointMetrics` that are not 0 or empty."""


class FilterRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of a filter."""

    name: str
    removed: list[str]
    """Names of the endpoints that it removed."""
    reason: str = ""


class ScorerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a scorer."""

    name: str
    weight: float
    values: list[float]
    """Score of each of the profile's ``endpoints``, in [0, 1] and without the weight."""


class ProfileRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The run of one profile."""

    name: str
    is_primary: bool
    is_shadow: bool
    filters: list[FilterRecord]
    """Filters in the order in which they ran. The filters inside a composite one, such as a
    decision tree, follow all others."""
    endpoints: list[str]
    """Names of the endpoints that passed the filters."""
    scorers: list[ScorerRecord]
    """Scorers, without those that failed or were disabled."""
    totals: list[float]
    """Weighted sums, in the order of ``endpoints``."""
    picker: str
    picked: list[str]
    """Names of the picked endpoints, best first."""
    ties: int
    """Number of endpoints with the same total as the picked one."""
    margin: float | None
    """See :class:`DecisionLine`."""
    error: str
    """Why it found no endpoint; "" if it found one."""
    preference: list[float] = []
    """Amounts that flow control added to the totals, which are then scaled to [0, 10); empty if it
    added none."""


class ShadowRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The choice of a shadow profile."""

    profile: str
    endpoint: str
    score: float
    margin: float | None
    """Total of its endpoint minus its total for the chosen endpoint; None if it removed that
    one."""
    agrees: bool


class ReservationRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The places that the request reserved in the same step as the decision."""

    endpoint: str
    destination: str
    """Addresses sent to the gateway, best first."""
    stages: dict[str, str] = {}
    """Endpoints of the other profiles, by profile."""


class PrefixRecord(msgspec.Struct, frozen=True, kw_only=True):
    """How much of the prompt each endpoint held, according to the endpoint picker's index."""

    blocks: dict[str, int]
    """Blocks held, by endpoint; an absent name holds none."""
    total_blocks: int
    block_size: int
    """Tokens per block."""


class DecisionRecord(DecisionLine, frozen=True, kw_only=True):
    """A decision with its inputs, its steps and its outcome."""

    path: str
    stream: bool
    body_bytes: int
    priority: int
    fairness_id: str
    queue_reasons: list[str]
    """Why the request was parked; empty if it was not."""
    prompt_tokens: int | None
    """Tokens counted by the model server; None if the response did not report them."""
    completion_tokens: int | None
    cached_tokens: int | None
    predicted_cached_tokens: int | None
    """Tokens of the prompt that the endpoint held according to the index; None without an index."""
    inputs: list[EndpointInputs]
    profiles: list[ProfileRecord]
    reservation: ReservationRecord | None
    """The reservation; None if the request was refused."""
    stages: dict[str, str]
    """Endpoints of the other profiles, such as a prefill, by profile."""
    shadow: list[ShadowRecord]
    prefix: PrefixRecord | None
    served_by: str
    """Name of the endpoint that served, if it is not the chosen one; "" otherwise."""
    served_address: str
    refused_at: str
    """Stage at which the request was refused; "" if it was not."""
    refused_reason: str
    error: str
    """The message in the response to a refused request."""
    pool: str = ""
    """The pool, where the endpoint picker serves several."""
    notes: list[str] = []
    """Explanations of the decision by plugins."""


class DecisionsPage(msgspec.Struct, frozen=True, kw_only=True):
    """The page ``/debug/decisions``."""

    decisions: list[DecisionLine]
    """Recorded decisions, newest first."""
    newest: int
    """Sequence number of the newest decision, recorded or not."""
    kept: int
    """Number of decisions in memory."""
    sampled: float
    """Share of the decisions since the oldest kept one that was recorded."""
