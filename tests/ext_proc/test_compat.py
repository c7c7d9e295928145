"""``--compat=reference``: the response to every class of error."""

import pytest
from structlog.testing import capture_logs

from epp.ext_proc import ExtProcSettings
from epp.parsing import FieldMissingError, ModelMissingError, NoParserError, NotJsonError
from epp.request_control import errors
from epp.request_control.errors import RequestError
from epp.scheduling import ProfileHandlerError
from tools.harness.ext_proc import DROP_REASON, Envoy, error_classes, error_headers, error_response
from tools.harness.request_control import BODY, Epp, FailingHandler, make_pool

REFERENCE = ExtProcSettings(compat="reference")
NO_ENDPOINTS = "rejected-no-endpoints"
SATURATED = "rejected-saturated"
NO_CANDIDATES = "ServiceUnavailable - failed to find endpoint candidates for serving the request"
ALL_FILTERED = "ResourceExhausted - no endpoints available for the given request"

_ROWS: list[tuple[type[RequestError], int, str, str]] = [
    (errors.RequestError, 500, "", "Internal - ours"),
    (errors.BadRequestError, 400, "", "BadRequest - ours"),
    (errors.InvalidTtlError, 400, "", "BadRequest - ours"),
    (
        errors.ProfileNotFoundError,
        *(429, "", "ResourceExhausted - failed to find target endpoint: ours"),
    ),
    (errors.ForceDeniedError, 403, "", "Forbidden - ours"),
    (errors.ForcedEndpointMissingError, 404, "", "NotFound - ours"),
    (errors.PoolNotServedError, 503, NO_ENDPOINTS, "ServiceUnavailable - ours"),
    (errors.NoPoolMatchesError, 404, "", "NotFound - ours"),
    (errors.NoCandidatesError, 503, NO_ENDPOINTS, NO_CANDIDATES),
    (errors.NoCandidatesForNoBodyError, 500, "", "Internal - no pods available in datastore"),
    (errors.OutsideSubsetError, 503, NO_ENDPOINTS, NO_CANDIDATES),
    (errors.NoServerRespondsError, 503, NO_ENDPOINTS, "ServiceUnavailable - ours"),
    (
        errors.ScreenedOutError,
        *(503, NO_ENDPOINTS, "ServiceUnavailable - screeners eliminated all endpoint candidates"),
    ),
    (errors.AllFilteredError, 429, SATURATED, ALL_FILTERED),
    (errors.RequestDroppedError, 429, SATURATED, ALL_FILTERED),
    (
        errors.NotCachedError,
        *(412, "", "PreconditionFailed - no decode worker has the requested KV cache"),
    ),
    (
        errors.SaturatedError,
        *(429, "", "ResourceExhausted - system saturated, sheddable request dropped"),
    ),
    (errors.AdmissionDeniedError, 500, "", "Internal - request cannot be admitted: ours"),
    (errors.InternalError, 500, "", "Internal - ours"),
    (errors.PluginFailedError, 500, "", "Internal - ours"),
    (errors.ShuttingDownError, 503, "rejected-shutting-down", "ServiceUnavailable - ours"),
    (errors.UnsupportedModeError, 500, "", "Internal - ours"),
    (errors.LimitError, 413, "", "PayloadTooLarge - ours"),
    (errors.BodyTooLargeError, 413, "", "PayloadTooLarge - ours"),
    (errors.PartialBodyError, 413, "", "PayloadTooLarge - ours"),
    (errors.HeadersTooLargeError, 431, "", "HeadersTooLarge - ours"),
    (errors.TooDeepError, 400, "", "BadRequest - ours"),
    (errors.TooManyJsonValuesError, 400, "", "BadRequest - ours"),
    (errors.TooManyStreamsError, 503, "rejected-too-many-streams", "ServiceUnavailable - ours"),
    (errors.QueueFullError, 429, "rejected-saturated", "ResourceExhausted - ours"),
    (errors.QueueExpiredError, 429, "rejected-ttl-expired", "ResourceExhausted - ours"),
    (errors.QueueNoEndpointsError, 503, "rejected-no-endpoints", "ServiceUnavailable - ours"),
    (errors.HeldBytesError, 503, "rejected-held-bytes", "ServiceUnavailable - ours"),
    (errors.SlowBodyError, 503, "rejected-held-bytes", "ServiceUnavailable - ours"),
    (errors.CostlyBodiesError, 503, "rejected-costly-bodies", "ServiceUnavailable - ours"),
    (errors.DecodedBodyTooLargeError, 413, "", "PayloadTooLarge - ours"),
    (errors.BodyTimeoutError, 408, "", "RequestTimeout - ours"),
    (errors.ResponseTimeoutError, 504, "", "GatewayTimeout - ours"),
]


def answered(error: RequestError) -> tuple[int, str, str]:
    """Return status, drop reason and message; assert that there is no other header or text."""
    reply = error_response(error, REFERENCE)
    headers = error_headers(reply)
    reason = headers.pop(DROP_REASON, "")
    assert headers == {}
    prefix, _, message = reply.body.decode().partition("inference error: ")
    assert prefix == ""
    return reply.status.code, reason, message


def test_every_class_of_error_has_a_row() -> None:
    assert error_classes() == {row[0] for row in _ROWS} | {errors.EvictedError}


def test_an_eviction_is_answered_with_the_message_alone() -> None:
    error = errors.EvictedError("request evicted by flow control")
    reply = error_response(error, REFERENCE)
    headers = error_headers(reply)
    assert (reply.status.code, headers) == (429, {DROP_REASON: "evicted"})
    assert reply.body == b"request evicted by flow control"


@pytest.mark.parametrize("row", _ROWS, ids=lambda row: row[0].__name__)
def test_an_error_is_answered_as_the_reference_does(
    row: tuple[type[RequestError], int, str, str],
) -> None:
    kind, status, reason, message = row
    assert answered(kind("ours")) == (status, reason, message)


@pytest.mark.parametrize(
    ("cause", "message"),
    [
        pytest.param(
            NotJsonError("byte 1"), "error unmarshaling request bodyMap: byte 1", id="no JSON"
        ),
        pytest.param(ModelMissingError(), "model not found in request body", id="no model"),
        pytest.param(
            FieldMissingError("prompt"),
            "invalid completions request: must have prompt field",
            id="no prompt",
        ),
        pytest.param(
            FieldMissingError("messages"),
            "invalid chat completions request: must have valid messages field",
            id="no messages",
        ),
        pytest.param(
            FieldMissingError("input"),
            "the request body must have a field 'input'",
            id="a field for which the reference has no words that are known",
        ),
        pytest.param(
            NoParserError("no parser registered matching path suffix for: /x"),
            "no parser registered matching path suffix for: /x",
            id="no parser, said alike",
        ),
    ],
)
def test_a_bad_request_gets_the_message_of_the_reference(cause: Exception, message: str) -> None:
    error = errors.BadRequestError(str(cause))
    error.__cause__ = cause
    assert answered(error) == (400, "", f"BadRequest - {message}")


def test_a_denial_class_of_a_plugin_is_answered_as_an_admitters_denial() -> None:
    class Busy(errors.AdmissionDeniedError):
        status = 503

    assert answered(Busy("come back")) == (
        *(500, ""),
        "Internal - request cannot be admitted: come back",
    )


@pytest.mark.usefixtures("wire")
def test_a_failed_profile_handler_is_answered_as_no_target() -> None:
    epp = Epp(make_pool(), handler=FailingHandler())
    envoy = Envoy(epp, settings=REFERENCE)
    envoy.request_headers()
    with capture_logs() as logs:
        (reply,) = envoy.request_body(BODY)
    assert reply.immediate_response.status.code == 429
    assert reply.immediate_response.body.startswith(
        b"inference error: ResourceExhausted - failed to find target endpoint: the endpoint picker"
    )
    (line,) = [each for each in logs if each["event"] == "request failed inside the EPP"]
    assert isinstance(line["exc_info"], ProfileHandlerError)
