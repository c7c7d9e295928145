"""With tracing on, a request without ``traceparent`` gets one."""

import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.ext_proc import processing_response
from epp.request_control.plugins import REQUEST_HEADERS_TO_SET, PreRequest
from epp.scheduling import CycleState, LLMRequest, SchedulingResult
from epp.tracing import Sampler, Tracer
from tools.harness.ext_proc import (
    BUFFERED,
    FULL_DUPLEX,
    LEAN,
    POST,
    Envoy,
    Modes,
    changed_headers,
    on_one_wire,
)
from tools.harness.request_control import Epp, make_pool

pytestmark = [on_one_wire, pytest.mark.usefixtures("wire")]

CLIENTS = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
# W3C Trace Context §3.2.2: no field of zeros.
FORM = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-0[01]")


class SetsTraceparent(PreRequest):
    """Sets a header."""

    type = "sets-traceparent"
    name = "sets-traceparent"

    def pre_request(self, request: LLMRequest, result: SchedulingResult, state: CycleState) -> None:
        headers: dict[str, str | None] = {"traceparent": CLIENTS}
        state.write(REQUEST_HEADERS_TO_SET, headers)


def routed(epp: Epp, modes: Modes, *, tracing: bool, **headers: str) -> dict[str, str]:
    """Return the headers that the reply sets."""
    envoy = Envoy(epp, modes, tracer=Tracer(Sampler(1.0)) if tracing else None)
    envoy.request_headers({**POST, **headers})
    reply = envoy.request_body()[0]
    common = (reply.request_body if modes == BUFFERED else reply.request_headers).response
    return changed_headers(common)[0]


@pytest.mark.parametrize("modes", [FULL_DUPLEX, LEAN, BUFFERED])
def test_tracing_adds_a_traceparent_to_requests_without_one(modes: Modes) -> None:
    epp = Epp(make_pool())
    made = routed(epp, modes, tracing=True)["traceparent"]
    assert FORM.fullmatch(made)
    assert made.endswith("-01")
    assert routed(epp, modes, tracing=True)["traceparent"] != made
    assert "traceparent" not in routed(epp, modes, tracing=False)


def test_a_traceparent_is_set_once_with_other_headers() -> None:
    made = routed(Epp(make_pool()), BUFFERED, tracing=True, **{"x-request-id": ""})
    assert FORM.fullmatch(made["traceparent"])
    assert made["x-request-id"]


@pytest.mark.parametrize("on_body", [False, True])
@pytest.mark.parametrize("destination", ["10.0.0.1:8000", "10.0.0.1:8000,10.0.0.22:8000"])
def test_a_cached_reply_equals_protobufs(destination: str, on_body: bool) -> None:
    removed = ("x-llm-d-slo-ttft-ms",)
    for traceparent in ("", CLIENTS):
        trace = {"traceparent": traceparent} if traceparent else {}
        assert processing_response.routed(
            destination, on_body=on_body, removed=removed, traceparent=traceparent
        ) == processing_response.routed_anew(
            destination, on_body=on_body, headers={**dict.fromkeys(removed), **trace}, body=None
        )


def test_a_traceparent_of_the_client_is_kept() -> None:
    assert "traceparent" not in routed(
        Epp(make_pool()), FULL_DUPLEX, tracing=True, traceparent=CLIENTS
    )


def test_a_traceparent_of_a_plugin_wins() -> None:
    epp = Epp(make_pool(), plugins=[SetsTraceparent()])
    assert routed(epp, FULL_DUPLEX, tracing=True)["traceparent"] == CLIENTS


@pytest.mark.parametrize(
    "invalid",
    [
        pytest.param(f"00-{0:032x}-b7ad6b7169203331-01", id="trace id of zeros"),
        pytest.param(f"00-0af7651916cd43dd8448eb211c80319c-{0:016x}-01", id="span id of zeros"),
        pytest.param("ff" + CLIENTS[2:], id="version ff"),
        pytest.param(CLIENTS.upper(), id="upper case"),
        pytest.param(CLIENTS + "-00", id="more fields than version 00 has"),
        pytest.param(CLIENTS[:-1], id="too short"),
        pytest.param("", id="empty"),
        pytest.param("x" * 100_000, id="100 KB"),
    ],
)
@pytest.mark.parametrize("modes", [FULL_DUPLEX, BUFFERED])
def test_an_invalid_traceparent_is_replaced_and_its_tracestate_removed(
    invalid: str, modes: Modes
) -> None:
    envoy = Envoy(Epp(make_pool()), modes, tracer=Tracer(Sampler(1.0)))
    envoy.request_headers({**POST, "traceparent": invalid, "tracestate": "vendor=1"})
    reply = envoy.request_body()[0]
    common = (reply.request_body if modes == BUFFERED else reply.request_headers).response
    changed, removed = changed_headers(common)
    assert FORM.fullmatch(changed["traceparent"])
    assert changed["traceparent"] not in {invalid, CLIENTS}
    assert "tracestate" in removed


def test_a_later_version_with_more_fields_is_kept() -> None:
    later = f"01{CLIENTS[2:]}-more"
    epp = Epp(make_pool())
    assert "traceparent" not in routed(epp, FULL_DUPLEX, tracing=True, traceparent=later)


@given(st.integers(), st.floats(0, 1))
def test_every_value_has_the_form_of_the_specification(seed: int, ratio: float) -> None:
    tracer = Tracer(Sampler(ratio), rng=random.Random(seed))
    assert FORM.fullmatch(tracer.begin({})[1].traceparent)


@pytest.mark.parametrize(("ratio", "sampled"), [(0.0, 0), (0.1, 101), (1.0, 1000)])
def test_the_configured_share_is_sampled(ratio: float, sampled: int) -> None:
    tracer = Tracer(Sampler(ratio), rng=random.Random(3))
    made = [tracer.begin({})[1].traceparent for _ in range(1000)]
    assert abs(sum(each.endswith("-01") for each in made) - sampled) <= (20 if 0 < ratio < 1 else 0)
