"""Requests that end before their body is complete are recorded with the reason."""

import gzip
from collections.abc import Callable

import pytest
from admin.recorded import Recorded

from epp.ext_proc.settings import ExtProcSettings
from epp.request_control import BodyLanes, BodyQueue, EndCause, PendingDecision
from tools.harness.ext_proc import FULL_DUPLEX, Envoy, on_one_wire
from tools.harness.request_control import make_pool

pytestmark = [on_one_wire, pytest.mark.usefixtures("wire")]

SECRET = "s3cret"
PATH = f"/v1/completions?key={SECRET}"


def too_long(envoy: Envoy) -> None:
    envoy.request_headers({":path": PATH})
    envoy.request_body(b"x" * 200, end=False)


def too_long_by_its_header(envoy: Envoy) -> None:
    envoy.request_headers({":path": PATH, "content-length": "200"})


def begun(envoy: Envoy) -> None:
    envoy.request_headers({":path": PATH})
    envoy.request_body(b"{", end=False)


def begun_then_drained(envoy: Envoy) -> None:
    begun(envoy)
    envoy.drain()


def begun_then_out_of_order(envoy: Envoy) -> None:
    begun(envoy)
    envoy.request_headers()


def too_slow(envoy: Envoy) -> None:
    begun(envoy)
    envoy.stream.time_out("request-body-timeout", "no byte for 60 s")


@pytest.mark.parametrize(
    ("end", "status", "stage", "reason"),
    [
        (too_long, 413, "ext_proc", "PayloadTooLarge"),
        (too_long_by_its_header, 413, "ext_proc", "PayloadTooLarge"),
        (too_slow, 408, "ext_proc", "RequestTimeout"),
        (begun_then_drained, 503, "ext_proc", "rejected-shutting-down"),
        (begun_then_out_of_order, 500, "request", "Internal"),
    ],
)
def test_a_refusal_before_the_body_is_whole_is_recorded(
    end: Callable[[Envoy], None], status: int, stage: str, reason: str
) -> None:
    recorded = Recorded()
    envoy = Envoy(recorded.epp, FULL_DUPLEX, settings=ExtProcSettings(max_body_bytes=100))
    end(envoy)
    (reply,) = envoy.take()
    assert reply.immediate_response.status.code == status
    (line,) = recorded.page().decisions
    record = recorded.record(line.request_id)
    assert (record.status, record.outcome, record.endpoint) == (status, "refused", "")
    assert (record.refused_at, record.refused_reason) == (stage, reason)
    assert (record.path, record.model, record.inputs) == ("/v1/completions", "", [])
    assert record.why.startswith(f"Refused with {status} at stage {stage} ({reason}): ")
    assert SECRET not in str(record)


@pytest.mark.parametrize("end", [Envoy.reset, Envoy.half_close])
def test_a_client_that_leaves_before_the_body_is_whole_is_recorded(
    end: Callable[[Envoy], None],
) -> None:
    recorded = Recorded()
    envoy = Envoy(recorded.epp, FULL_DUPLEX)
    begun(envoy)
    recorded.clock.now += 0.5
    end(envoy)
    (line,) = recorded.page().decisions
    assert (line.outcome, line.status) == (EndCause.CLIENT_DISCONNECT.value, None)
    assert line.duration_seconds == 0.5
    assert line.why == "The client left before an endpoint was chosen."


def test_a_stream_without_headers_is_not_recorded() -> None:
    recorded = Recorded()
    Envoy(recorded.epp, FULL_DUPLEX).drain()
    assert recorded.page().decisions == []


def test_a_whole_request_is_recorded_once() -> None:
    recorded = Recorded(make_pool())
    envoy = Envoy(recorded.epp, FULL_DUPLEX)
    envoy.post()
    envoy.reset()
    assert [each.outcome for each in recorded.page().decisions] == ["client-disconnect"]


@pytest.mark.parametrize("cause", [EndCause.CLIENT_DISCONNECT, EndCause.TIMED_OUT])
async def test_a_request_that_waits_for_its_body_to_be_decoded_is_recorded(cause: EndCause) -> None:
    recorded = Recorded()
    queue = BodyQueue(recorded.epp.director, BodyLanes(clock=recorded.clock))
    body = gzip.compress(b"x" * (4 << 20))
    headers = {":path": PATH, "content-encoding": "gzip", "content-type": "application/json"}
    decision = queue.handle(request_id="r-1", headers=headers, body=body, received_at=1.0)
    assert isinstance(decision, PendingDecision)
    decision.cancel(cause)
    record = recorded.record()
    assert (record.outcome, record.path, record.endpoint) == (cause.value, "/v1/completions", "")
