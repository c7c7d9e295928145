"""The response to every class of error, in both forms."""

import json
import re

import pytest

from epp.ext_proc import ExtProcSettings
from epp.ext_proc.settings import ErrorBody
from epp.ext_proc.time_limits import IDLE, OPEN
from epp.ext_proc.upload_watch import SLOW
from epp.request_control import errors
from epp.request_control.errors import RequestError
from tools.harness.ext_proc import (
    DROP_REASON,
    POST,
    Envoy,
    error_classes,
    error_headers,
    error_response,
)
from tools.harness.request_control import BODY, Epp, make_pool

_ROWS: list[tuple[type[RequestError], int, str, str]] = [
    (errors.RequestError, 500, "Internal", ""),
    (errors.BadRequestError, 400, "BadRequest", ""),
    (errors.InvalidTtlError, 400, "BadRequest", ""),
    (errors.ProfileNotFoundError, 400, "BadRequest", ""),
    (errors.ForceDeniedError, 403, "Forbidden", ""),
    (errors.ForcedEndpointMissingError, 404, "NotFound", ""),
    (errors.PoolNotServedError, 503, "ServiceUnavailable", "rejected-no-endpoints"),
    (errors.NoPoolMatchesError, 404, "NotFound", ""),
    (errors.NoCandidatesError, 503, "ServiceUnavailable", "rejected-no-endpoints"),
    (errors.NoCandidatesForNoBodyError, 503, "ServiceUnavailable", "rejected-no-endpoints"),
    (errors.OutsideSubsetError, 503, "ServiceUnavailable", "rejected-no-endpoints"),
    (errors.NoServerRespondsError, 503, "ServiceUnavailable", "rejected-no-endpoints"),
    (errors.ScreenedOutError, 503, "ServiceUnavailable", "rejected-no-endpoints"),
    (errors.AllFilteredError, 429, "ResourceExhausted", "rejected-saturated"),
    (errors.RequestDroppedError, 429, "ResourceExhausted", "rejected-saturated"),
    (errors.NotCachedError, 412, "PreconditionFailed", ""),
    (errors.SaturatedError, 429, "ResourceExhausted", "rejected-saturated"),
    (errors.QueueFullError, 429, "ResourceExhausted", "rejected-saturated"),
    (errors.QueueExpiredError, 429, "ResourceExhausted", "rejected-ttl-expired"),
    (errors.QueueNoEndpointsError, 503, "ServiceUnavailable", "rejected-no-endpoints"),
    (errors.EvictedError, 429, "ResourceExhausted", "evicted"),
    (errors.AdmissionDeniedError, 429, "ResourceExhausted", "rejected-saturated"),
    (errors.InternalError, 500, "Internal", ""),
    (errors.PluginFailedError, 500, "Internal", ""),
    (errors.ShuttingDownError, 503, "ServiceUnavailable", "rejected-shutting-down"),
    (errors.UnsupportedModeError, 500, "Internal", ""),
    (errors.BodyTimeoutError, 408, "RequestTimeout", ""),
    (errors.ResponseTimeoutError, 504, "GatewayTimeout", ""),
    (errors.LimitError, 413, "PayloadTooLarge", ""),
    (errors.BodyTooLargeError, 413, "PayloadTooLarge", ""),
    (errors.PartialBodyError, 413, "PayloadTooLarge", ""),
    (errors.HeadersTooLargeError, 431, "HeadersTooLarge", ""),
    (errors.TooDeepError, 400, "BadRequest", ""),
    (errors.TooManyJsonValuesError, 400, "BadRequest", ""),
    (errors.TooManyStreamsError, 503, "ServiceUnavailable", "rejected-too-many-streams"),
    (errors.HeldBytesError, 503, "ServiceUnavailable", "rejected-held-bytes"),
    (errors.SlowBodyError, 503, "ServiceUnavailable", "rejected-held-bytes"),
    (errors.CostlyBodiesError, 503, "ServiceUnavailable", "rejected-costly-bodies"),
    (errors.DecodedBodyTooLargeError, 413, "PayloadTooLarge", ""),
]


def test_every_class_of_error_has_a_row() -> None:
    assert error_classes() == {row[0] for row in _ROWS}


def test_the_metric_of_limits_describes_every_limit() -> None:
    limits = {row[0].limit for row in _ROWS if issubclass(row[0], errors.LimitError)} - {""}
    (family,) = Epp(make_pool()).metrics.limits_exceeded.collect()
    described = set(re.findall(r"[a-z-]+", family.documentation.partition(": ")[2])) - {"or"}
    assert described == limits | {SLOW, IDLE, OPEN}


@pytest.mark.parametrize("form", ["json", "text"])
@pytest.mark.parametrize("row", _ROWS, ids=lambda row: row[0].__name__)
def test_an_error_is_answered(
    row: tuple[type[RequestError], int, str, str], form: ErrorBody
) -> None:
    kind, status, code, reason = row
    reply = error_response(kind("it was not to be"), ExtProcSettings(error_body=form))
    headers = error_headers(reply)
    assert reply.status.code == status
    assert headers.pop(DROP_REASON, "") == reason
    assert headers.pop("retry-after", "") == ("1" if status in {429, 503} else "")
    if form == "json":
        assert headers == {"content-type": "application/json", "x-request-id": "r-1"}
        error = json.loads(reply.body)["error"]
        assert error == {
            "message": "it was not to be",
            "type": code,
            "code": status,
            "stage": kind.stage,
            "request_id": "r-1",
        }
    else:
        assert headers == {"content-type": "text/plain"}
        request = " (request r-1)" if status == 500 else ""
        assert reply.body.decode() == f"inference error: {code} - it was not to be{request}"


@pytest.mark.parametrize(
    "path",
    ["/v1/messages", "/v1/messages?beta=true", "/v1/messages/count_tokens", "/team/v1/messages"],
)
@pytest.mark.parametrize(
    ("error", "kind", "cause"),
    [
        (errors.BadRequestError, "invalid_request_error", "BadRequest"),
        (errors.SaturatedError, "rate_limit_error", "rejected-saturated"),
        (errors.NoCandidatesError, "overloaded_error", "rejected-no-endpoints"),
        (errors.BodyTooLargeError, "request_too_large", "PayloadTooLarge"),
        (errors.HeadersTooLargeError, "invalid_request_error", "HeadersTooLarge"),
        (errors.InternalError, "api_error", "Internal"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_the_anthropic_api_has_its_own_form(
    path: str, error: type[RequestError], kind: str, cause: str
) -> None:
    reply = error_response(error("it was not to be"), path=path)
    headers = error_headers(reply)
    assert headers["request-id"] == "r-1"
    assert "x-request-id" not in headers
    assert json.loads(reply.body) == {
        "type": "error",
        "error": {
            "type": kind,
            "message": "it was not to be",
            "details": {"error_code": cause, "stage": error.stage},
        },
        "request_id": "r-1",
    }


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages/batches", "/", ""])
def test_all_other_paths_have_the_openai_form(path: str) -> None:
    body = json.loads(error_response(errors.NoCandidatesError("none"), path=path).body)
    assert body["error"]["type"] == "ServiceUnavailable"
    assert "type" not in body


def test_an_error_before_the_request_has_an_id_contains_none() -> None:
    reply = error_response(errors.ShuttingDownError("gone"), request_id="")
    assert "x-request-id" not in error_headers(reply)


def test_error_body_text_applies_to_every_path() -> None:
    settings = ExtProcSettings(error_body="text")
    reply = error_response(errors.NoCandidatesError("none"), settings, path="/v1/messages")
    assert reply.body == b"inference error: ServiceUnavailable - none"


@pytest.mark.usefixtures("wire")
def test_the_path_selects_the_error_form() -> None:
    envoy = Envoy(Epp([]))
    envoy.request_headers({**POST, ":path": "/v1/messages"})
    (reply,) = envoy.request_body(BODY)
    body = json.loads(reply.immediate_response.body)
    assert body["error"]["type"] == "overloaded_error"
    assert body["request_id"] == "r-1"


@pytest.mark.parametrize(("seconds", "header"), [(0, None), (30, "30")])
def test_retry_after_is_the_configured_value(seconds: int, header: str | None) -> None:
    settings = ExtProcSettings(retry_after_seconds=seconds)
    reply = error_response(errors.NoCandidatesError("none"), settings)
    assert error_headers(reply).get("retry-after") == header


@pytest.mark.usefixtures("wire")
@pytest.mark.parametrize(
    ("body", "text"),
    [
        pytest.param(
            b"{}", "inference error: BadRequest - model not found", id="the client's fault"
        ),
        pytest.param(BODY, "request r-1", id="a fault of the EPP"),
    ],
)
def test_errors_are_text_if_configured(body: bytes, text: str) -> None:
    epp = Epp(make_pool())
    epp.endpoints = None  # type: ignore[assignment] # a pool with a bug
    envoy = Envoy(epp, settings=ExtProcSettings(error_body="text"))
    envoy.request_headers()
    (reply,) = envoy.request_body(body)
    assert text in reply.immediate_response.body.decode()
    assert reply.immediate_response.body.startswith(b"inference error: ")
