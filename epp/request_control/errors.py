"""Errors that end a request with an HTTP answer of our own.

Each class carries its HTTP status, the reference's name for it and its drop reason, so that the
protocol layer turns any of them into a response in one place.
"""

from typing import ClassVar


class RequestError(Exception):
    """Base of every error that is answered to the client.

    Attributes:
        status: HTTP status of the answer.
        code: The reference EPP's name for that class of error.
        stage: Where in the request's way it arose.
        drop_reason: Value of ``x-llm-d-request-dropped-reason``; "" for none.
    """

    status: ClassVar[int] = 500
    code: ClassVar[str] = "Internal"
    stage: ClassVar[str] = "request"
    drop_reason: ClassVar[str] = ""


class BadRequestError(RequestError):
    """The body is not what its path promises."""

    status = 400
    code = "BadRequest"
    stage = "parsing"


class ProfileNotFoundError(RequestError):
    """The request asks for a scheduling profile that is not configured."""

    status = 400
    code = "BadRequest"
    stage = "scheduling"


class NoCandidatesError(RequestError):
    """The pool has no endpoint to choose from."""

    status = 503
    code = "ServiceUnavailable"
    stage = "candidates"
    drop_reason = "rejected-no-endpoints"


class NoCandidatesForNoBodyError(NoCandidatesError):
    """The same for a request without a body, which the reference answers otherwise."""


class OutsideSubsetError(RequestError):
    """There are endpoints, but none that the gateway lets the request go to."""

    status = 503
    code = "ServiceUnavailable"
    stage = "candidates"
    drop_reason = "rejected-no-endpoints"


class ScreenedOutError(RequestError):
    """There are endpoints, but screeners let the request see none of them."""

    status = 503
    code = "ServiceUnavailable"
    stage = "candidates"
    drop_reason = "rejected-no-endpoints"


class AllFilteredError(RequestError):
    """The scheduling profile's filters left no endpoint."""

    status = 429
    code = "ResourceExhausted"
    stage = "scheduling"
    drop_reason = "rejected-saturated"


class RequestDroppedError(RequestError):
    """A filter gave the request up: the pool has no room for its kind."""

    status = 429
    code = "ResourceExhausted"
    stage = "scheduling"
    drop_reason = "rejected-saturated"


class NotCachedError(RequestError):
    """The request asks for a server with its prefix in the cache, and the best one has none."""

    status = 412
    code = "PreconditionFailed"
    stage = "scheduling"


class SaturatedError(RequestError):
    """The pool is full, and the request is one that may be turned away."""

    status = 429
    code = "ResourceExhausted"
    stage = "admission"
    drop_reason = "rejected-saturated"


class QueueFullError(RequestError):
    """As many requests wait as may, or as many bytes."""

    status = 429
    code = "ResourceExhausted"
    stage = "flow-control"
    drop_reason = "rejected-saturated"


class QueueExpiredError(RequestError):
    """The request has waited for as long as it may."""

    status = 429
    code = "ResourceExhausted"
    stage = "flow-control"
    drop_reason = "rejected-ttl-expired"


class QueueNoEndpointsError(RequestError):
    """The pool has no endpoint, and the request may not wait for one any longer, or at all."""

    status = 503
    code = "ServiceUnavailable"
    stage = "flow-control"
    drop_reason = "rejected-no-endpoints"


class EvictedError(RequestError):
    """The request was at its endpoint and had to make room for others."""

    status = 429
    code = "ResourceExhausted"
    stage = "flow-control"
    drop_reason = "evicted"


class AdmissionDeniedError(RequestError):
    """An admitter turned the request away."""

    status = 429
    code = "ResourceExhausted"
    stage = "admission"
    drop_reason = "rejected-saturated"


class InternalError(RequestError):
    """A fault of this EPP or of one of its plugins; details are in its log."""


class ShuttingDownError(RequestError):
    """This EPP stops and can decide nothing any more."""

    status = 503
    code = "ServiceUnavailable"
    stage = "ext_proc"
    drop_reason = "rejected-shutting-down"


class UnsupportedModeError(RequestError):
    """Envoy is configured in a way that cannot work; the message says what to change."""

    stage = "ext_proc"


class BodyTimeoutError(RequestError):
    """The request's body did not come in time."""

    status = 408
    code = "RequestTimeout"
    stage = "ext_proc"


class AnswerTimeoutError(RequestError):
    """The request is whole, and its answer did not begin in time."""

    status = 504
    code = "GatewayTimeout"
    stage = "ext_proc"


class LimitError(RequestError):
    """The request is more than what is taken in.

    Attributes:
        limit: Which limit; a label of ``request_limit_exceeded_total``.
    """

    status = 413
    code = "PayloadTooLarge"
    stage = "ext_proc"
    limit: ClassVar[str] = ""


class BodyTooLargeError(LimitError):
    """The request's body is larger than this EPP takes in."""

    limit = "body-bytes"


class DecodedBodyTooLargeError(LimitError):
    """The request's body decodes to too many times its received size."""

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
    """The request's body is larger than Envoy buffers, so that only its start came."""

    limit = "envoy-buffer"


class HeadersTooLargeError(LimitError):
    """The request's headers are larger than this EPP takes in."""

    status = 431
    code = "HeadersTooLarge"
    limit = "header-bytes"


class TooDeepError(LimitError):
    """The request's JSON is nested deeper than can be read."""

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
    """As many requests are open as may be."""

    status = 503
    code = "ServiceUnavailable"
    drop_reason = "rejected-too-many-streams"
    limit = "streams"


class HeldBytesError(LimitError):
    """Bodies that are not passed on yet take as much memory as they may."""

    status = 503
    code = "ServiceUnavailable"
    drop_reason = "rejected-held-bytes"
    limit = "held-bytes"


class SlowBodyError(HeldBytesError):
    """The request's body had to make room for others: it was large, and came slowly."""

    limit = "held-bytes-evicted"
