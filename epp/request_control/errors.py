"""Errors that end a request with an HTTP response of this EPP.

Each class has an HTTP status, the Go EPP's code and a drop reason, so that the protocol layer
turns any of them into a response in one place.
"""

from typing import ClassVar


class RequestError(Exception):
    """Base of every error that is sent to the client.

    Attributes:
        status: HTTP status of the response.
        code: The Go EPP's name for that class of error.
        stage: The stage of processing that raised it.
        drop_reason: Value of ``x-llm-d-request-dropped-reason``; "" for none.
    """

    status: ClassVar[int] = 500
    code: ClassVar[str] = "Internal"
    stage: ClassVar[str] = "request"
    drop_reason: ClassVar[str] = ""


class BadRequestError(RequestError):
    """The body is invalid for its path."""

    status = 400
    code = "BadRequest"
    stage = "parsing"


class InvalidTtlError(BadRequestError):
    """The header with the request's time to live is invalid."""


class ProfileNotFoundError(RequestError):
    """The request asks for a scheduling profile that is not configured."""

    status = 400
    code = "BadRequest"
    stage = "scheduling"


class ForceDeniedError(RequestError):
    """The header that forces an endpoint is malformed, signed with another key, or expired."""

    status = 403
    code = "Forbidden"
    stage = "forced-endpoint"


class ForcedEndpointMissingError(RequestError):
    """The pool has no endpoint of the name or address that a signed header forces."""

    status = 404
    code = "NotFound"
    stage = "forced-endpoint"


class PoolNotServedError(RequestError):
    """The gateway asks for a pool that this endpoint picker does not serve, at least not yet."""

    status = 503
    code = "ServiceUnavailable"
    stage = "pool"
    drop_reason = "rejected-no-endpoints"


class NoPoolMatchesError(RequestError):
    """Several pools are served, and nothing says which of them the request is for."""

    status = 404
    code = "NotFound"
    stage = "pool"


class NoCandidatesError(RequestError):
    """The pool has no endpoint to choose from."""

    status = 503
    code = "ServiceUnavailable"
    stage = "candidates"
    drop_reason = "rejected-no-endpoints"


class NoCandidatesForNoBodyError(NoCandidatesError):
    """The pool has no endpoint for a request without a body; the Go EPP answers it differently."""


class NoServerRespondsError(RequestError):
    """The gateway got no response from the endpoint, and all others are ejected as well."""

    status = 503
    code = "ServiceUnavailable"
    stage = "response"
    drop_reason = "rejected-no-endpoints"


class OutsideSubsetError(RequestError):
    """None of the pool's endpoints is in the gateway's subset hint."""

    status = 503
    code = "ServiceUnavailable"
    stage = "candidates"
    drop_reason = "rejected-no-endpoints"


class ScreenedOutError(RequestError):
    """Screeners excluded all of the pool's endpoints."""

    status = 503
    code = "ServiceUnavailable"
    stage = "candidates"
    drop_reason = "rejected-no-endpoints"


class AllFilteredError(RequestError):
    """The scheduling profile's filters removed every endpoint."""

    status = 429
    code = "ResourceExhausted"
    stage = "scheduling"
    drop_reason = "rejected-saturated"


class RequestDroppedError(RequestError):
    """A filter dropped the request, for example because the pool has no capacity for its kind."""

    status = 429
    code = "ResourceExhausted"
    stage = "scheduling"
    drop_reason = "rejected-saturated"


class NotCachedError(RequestError):
    """The request requires a server that has its prefix cached; the chosen one does not have it."""

    status = 412
    code = "PreconditionFailed"
    stage = "scheduling"


class SaturatedError(RequestError):
    """The pool is full, and the request is sheddable."""

    status = 429
    code = "ResourceExhausted"
    stage = "admission"
    drop_reason = "rejected-saturated"


class QueueFullError(RequestError):
    """The flow-control queue has reached its limit of requests or bytes."""

    status = 429
    code = "ResourceExhausted"
    stage = "flow-control"
    drop_reason = "rejected-saturated"


class QueueExpiredError(RequestError):
    """The request waited in the flow-control queue until its time limit."""

    status = 429
    code = "ResourceExhausted"
    stage = "flow-control"
    drop_reason = "rejected-ttl-expired"


class QueueNoEndpointsError(RequestError):
    """The pool has no endpoint, and the request may not wait for one, or has waited too long."""

    status = 503
    code = "ServiceUnavailable"
    stage = "flow-control"
    drop_reason = "rejected-no-endpoints"


class EvictedError(RequestError):
    """Flow control evicted the request after its dispatch, in favour of others."""

    status = 429
    code = "ResourceExhausted"
    stage = "flow-control"
    drop_reason = "evicted"


class AdmissionDeniedError(RequestError):
    """An admitter refused the request."""

    status = 429
    code = "ResourceExhausted"
    stage = "admission"
    drop_reason = "rejected-saturated"


class InternalError(RequestError):
    """A fault of this EPP or of one of its plugins; details are in its log."""


class PluginFailedError(RequestError):
    """A filter that fails closed has failed, and left no endpoint; the message names it."""

    stage = "scheduling"


class ShuttingDownError(RequestError):
    """This EPP is shutting down."""

    status = 503
    code = "ServiceUnavailable"
    stage = "ext_proc"
    drop_reason = "rejected-shutting-down"


class UnsupportedModeError(RequestError):
    """Envoy's configuration cannot work; the message says what to change."""

    stage = "ext_proc"


class BodyTimeoutError(RequestError):
    """The request's body did not arrive in time."""

    status = 408
    code = "RequestTimeout"
    stage = "ext_proc"


class ResponseTimeoutError(RequestError):
    """The response to a complete request did not begin in time."""

    status = 504
    code = "GatewayTimeout"
    stage = "ext_proc"


class LimitError(RequestError):
    """The request exceeds a limit.

    Attributes:
        limit: Name of the limit; a label of ``request_limit_exceeded_total``.
    """

    status = 413
    code = "PayloadTooLarge"
    stage = "ext_proc"
    limit: ClassVar[str] = ""


class BodyTooLargeError(LimitError):
    """The request's body is larger than the limit."""

    limit = "body-bytes"


class DecodedBodyTooLargeError(LimitError):
    """The request's body exceeds the limit on the compression ratio."""

    stage = "parsing"
    limit = "compression-ratio"


class CostlyBodiesError(LimitError):
    """Too many requests with long or compressed bodies wait, or this one has waited too long."""

    status = 503
    code = "ServiceUnavailable"
    stage = "parsing"
    drop_reason = "rejected-costly-bodies"
    limit = "costly-bodies"


class PartialBodyError(LimitError):
    """The request's body is larger than Envoy's buffer, so that only its start arrived."""

    limit = "envoy-buffer"


class HeadersTooLargeError(LimitError):
    """The request's headers are larger than the limit."""

    status = 431
    code = "HeadersTooLarge"
    limit = "header-bytes"


class TooDeepError(LimitError):
    """The request's JSON is nested too deeply."""

    status = 400
    code = "BadRequest"
    stage = "parsing"
    limit = "json-depth"


class TooManyJsonValuesError(LimitError):
    """The request's JSON has more values than the limit."""

    status = 400
    code = "BadRequest"
    stage = "parsing"
    limit = "json-values"


class TooManyStreamsError(LimitError):
    """The limit of open streams is reached."""

    status = 503
    code = "ServiceUnavailable"
    drop_reason = "rejected-too-many-streams"
    limit = "streams"


class HeldBytesError(LimitError):
    """The memory limit of bodies that are not sent on yet is reached."""

    status = 503
    code = "ServiceUnavailable"
    drop_reason = "rejected-held-bytes"
    limit = "held-bytes"


class SlowBodyError(HeldBytesError):
    """The request was refused to free memory: its body was large and arrived slowly."""

    limit = "held-bytes-evicted"
