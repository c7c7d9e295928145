"""The fields of the canonical log line, one Struct for each kind of line."""

from collections.abc import Mapping, Sequence

import msgspec

from epp.scheduling import ShadowPick


class RequestFinished(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Fields of the line of a request that was sent to an endpoint, in the order written."""

    request_id: str
    model: str
    target_model: str
    endpoint: str
    """``namespace/name`` of the endpoint that served."""
    address: str
    waiting_requests: float
    """Load of the chosen endpoint at the decision; so are the next three."""
    running_requests: float
    kv_cache_usage: float
    metrics_age_seconds: float | None
    decision_seconds: float
    """From the request's headers to the decision."""
    duration_seconds: float
    """From the request's headers to the end of the stream."""
    body_bytes: int
    stream: bool
    status: int | None
    """HTTP status of the response; None if none arrived."""
    outcome: str
    forced: bool = False
    """Whether a signed header has named the endpoint; omitted if not."""
    priority: int = 0
    """Priority of its objective; omitted if 0."""
    fairness_id: str | None = None
    """Its flow; omitted if it is the default one."""
    trace_id: str | None = None
    """Omitted unless the request is traced."""
    queued_seconds: float | None = None
    """Time in flow control's queues, part of ``decision_seconds``; omitted if it did not wait."""
    prompt_tokens: int | None = None
    """Prompt tokens by the model server's count; omitted if the response did not report them."""
    completion_tokens: int | None = None
    """Generated tokens; likewise."""
    stages: Mapping[str, str] | None = None
    """Endpoints of the other profiles by profile, such as a prefill; omitted if there are none."""
    failed_producers: dict[str, str] | None = None
    """Reasons of the data producers that failed, by name; omitted if none did."""
    shadow: Sequence[ShadowPick] | None = None
    """Picks of the shadow profiles; omitted if none ran for the request."""


class RequestRefused(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Fields of the line of a request that was answered with an error, in the order written."""

    request_id: str
    model: str
    target_model: str
    status: int
    """HTTP status of the response."""
    stage: str
    reason: str
    error: str
    """The message in the response."""
    duration_seconds: float
    """From the request's headers to the response."""
    outcome: str
    priority: int = 0
    fairness_id: str | None = None
    trace_id: str | None = None
