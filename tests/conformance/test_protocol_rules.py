"""The rules of the endpoint picker protocol (GIE proposal 004) that bind an endpoint picker.

Each test is named after its rule; :func:`test_every_rule_has_a_test` counts them. Where there is a
stream, its messages go straight, and over either transport.
"""

import json
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, ClassVar

import grpc
import pytest
import pytest_asyncio
from google.protobuf import json_format
from grpc_health.v1 import health_pb2, health_pb2_grpc

from conformance.echo import EchoPool, EchoServer
from conformance.gateways import ANY
from conformance.messages import METHOD, asked, replies, routed
from epp.app import Transport
from epp.ext_proc import ExtProcSettings
from epp.health import EXT_PROC_SERVICE
from epp.request_control import PreRequest
from epp.request_control.plugins import REQUEST_HEADERS_TO_SET
from epp.scheduling import CycleState, Endpoint, LLMRequest, SchedulingResult
from epp.testing import make_endpoint, make_plugin
from epp_plugins.admitters.probabilistic import ProbabilisticAdmitter
from tools.harness.ext_proc import (
    BUFFERED,
    DESTINATION,
    FULL_DUPLEX,
    LEAN,
    NO_BODIES,
    POST,
    Envoy,
    Modes,
    assert_routes,
    changed_headers,
    echoed,
)
from tools.harness.gateway import TRANSPORTS, Picker, picking
from tools.harness.request_control import BODY, Epp, Policies, RefusingFilter

MODES = [
    pytest.param(FULL_DUPLEX, id="full duplex"),
    pytest.param(LEAN, id="lean"),
    pytest.param(BUFFERED, id="buffered"),
    pytest.param(NO_BODIES, id="no bodies"),
]
BEST, RANK, OTHER = "10.0.0.1:8000", "10.0.0.1:8001", "10.0.0.2:8000"


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=TRANSPORTS)
async def picker(request: pytest.FixtureRequest) -> AsyncIterator[Picker]:
    """A whole endpoint picker on each transport."""
    transport: Transport = request.param
    async with (
        EchoPool([EchoServer()]) as pods,
        picking(pods, config=ANY, transport=transport) as made,
    ):
        yield made


def of(*addresses: str, **signals: Any) -> list[Endpoint]:
    """Return endpoints, the best first."""
    return [
        make_endpoint(f"default/{n}", address=address, **({"waiting_requests": n} | signals))
        for n, address in enumerate(addresses)
    ]


def pool() -> list[Endpoint]:
    """Return three endpoints, the best first; two of them share an address."""
    return of(BEST, RANK, OTHER)


# --- transport --------------------------------------------------------------------------------


@pytest.mark.asyncio(loop_scope="module")
async def test_e1_the_service_of_ext_proc_is_there_and_no_other(picker: Picker) -> None:
    assert METHOD == "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
    request = asked(FULL_DUPLEX[0], "", has_body=True)
    received = await replies(picker.ports.grpc, request)
    assert [each for each in received if routed(each) is not None] == received[:1]
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await replies(picker.ports.grpc, [], method=METHOD.replace("v3", "v2"))
    assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.usefixtures("wire")
def test_e2_bodies_stream_in_both_directions() -> None:
    envoy = Envoy(Epp(pool()), FULL_DUPLEX)
    assert envoy.request_headers() == []
    assert envoy.request_body(BODY[:9], end=False) == []
    headers, *body = envoy.request_body(BODY[9:], end=True)
    assert_routes(headers, "request_headers", BEST)
    assert echoed(body, "request_body") == (BODY, [True])
    envoy.response_headers()
    for token in (b"data: a\n\n", b"data: b\n\n", b"data: [DONE]\n\n"):
        is_last = b"DONE" in token
        # Each comes back before the next is sent.
        back = envoy.response_body(token, end=is_last)
        assert echoed(back, "response_body") == (token, [is_last])


# --- the subset hint --------------------------------------------------------------------------


def hinted(subset: Any, modes: Modes = FULL_DUPLEX, *, follow: bool = True) -> Envoy:
    envoy = Envoy(Epp(pool(), follow_subset_hint=follow), modes)
    envoy.request_headers(subset=subset)
    envoy.request_body()
    return envoy


@pytest.mark.usefixtures("wire")
@pytest.mark.parametrize("modes", [FULL_DUPLEX, BUFFERED])
@pytest.mark.parametrize(
    ("subset", "chosen"),
    [
        pytest.param([OTHER], OTHER, id="a list of one"),
        pytest.param([OTHER, RANK], RANK, id="the best of a list"),
        pytest.param([RANK], RANK, id="ranks of one address are told apart by port"),
        pytest.param(["10.0.0.2"], OTHER, id="an address without a port"),
        pytest.param(["10.0.0.1"], BEST, id="an address without a port means all of its ports"),
        pytest.param(["192.0.2.9:1", RANK], RANK, id="one that the pool does not have is skipped"),
        pytest.param(f"{OTHER},{RANK}", RANK, id="a text with commas"),
        pytest.param(f" {OTHER} , ,", OTHER, id="blanks and empty items"),
        pytest.param([7, OTHER, None], OTHER, id="what is no text is skipped"),
    ],
)
def test_e3_only_what_the_hint_names_is_chosen(subset: Any, chosen: str, modes: Modes) -> None:
    envoy = hinted(subset, modes)
    kind = "request_body" if modes == BUFFERED else "request_headers"
    assert_routes(envoy.replies[0], kind, chosen)


@pytest.mark.usefixtures("wire")
@pytest.mark.parametrize(
    ("subset", "said"),
    [
        pytest.param([], "no endpoint", id="an empty list"),
        pytest.param("", "no endpoint", id="an empty text"),
        pytest.param([1, 2], "no endpoint", id="numbers"),
        pytest.param(7.0, "no endpoint", id="a number"),
        pytest.param(["192.0.2.9:8000"], "192.0.2.9:8000", id="one that the pool does not have"),
        pytest.param(["10.0.0.1:9999"], "10.0.0.1:9999", id="another port"),
        pytest.param([f"192.0.2.{n}" for n in range(9)], "and 4 more", id="many"),
    ],
)
def test_e4_nobody_to_choose_from_is_503(subset: Any, said: str) -> None:
    envoy = hinted(subset)
    (reply,) = envoy.replies
    refused = reply.immediate_response
    assert refused.status.code == 503
    assert said in refused.body.decode()
    (reason,) = (
        each.header.raw_value
        for each in refused.headers.set_headers
        if each.header.key == "x-llm-d-request-dropped-reason"
    )
    assert reason == b"rejected-no-endpoints"
    assert envoy.epp.in_flight == 0


@pytest.mark.usefixtures("wire")
@pytest.mark.parametrize(
    ("subset", "follow"),
    [
        pytest.param(None, True, id="no hint"),
        pytest.param([OTHER], False, id="--disable-endpoint-subset-filter"),
    ],
)
def test_e5_without_a_hint_all_of_the_pool_is_chosen_from(subset: Any, follow: bool) -> None:
    assert_routes(hinted(subset, follow=follow).replies[0], "request_headers", BEST)


# --- what the gateway is told -----------------------------------------------------------------


class Steering(PreRequest):
    """A plugin that would have the gateway go elsewhere."""

    type: ClassVar[str] = "steering"
    name = "steering"

    def pre_request(self, request: LLMRequest, result: SchedulingResult, state: CycleState) -> None:
        headers: dict[str, str | None] = {DESTINATION: "192.0.2.9:1", "x-tier": "gold"}
        state.write(REQUEST_HEADERS_TO_SET, headers)


def destinations(envoy: Envoy) -> tuple[str, str]:
    """Have a request decided; return the destination that header and metadata tell."""
    (reply,) = (each for each in envoy.post() if each.HasField("dynamic_metadata"))
    part = getattr(reply, reply.WhichOneof("response") or "")
    headers, _ = changed_headers(part.response)
    metadata = json_format.MessageToDict(reply.dynamic_metadata)["envoy.lb"]
    return headers[DESTINATION], metadata[DESTINATION]


@pytest.mark.parametrize("modes", MODES)
@pytest.mark.usefixtures("wire")
def test_e6_the_destination_is_sent_in_a_header_and_in_the_metadata(modes: Modes) -> None:
    assert destinations(Envoy(Epp(pool()), modes)) == (BEST, BEST)


@pytest.mark.usefixtures("wire")
def test_e6_it_is_sent_for_a_request_without_a_body() -> None:
    (reply,) = Envoy(Epp(pool()), FULL_DUPLEX).request_headers(end=True)
    assert_routes(reply, "request_headers", BEST)


@pytest.mark.parametrize(
    ("addresses", "picks", "value"),
    [
        pytest.param([BEST, OTHER], 1, BEST, id="one"),
        pytest.param([BEST, OTHER, RANK], 2, f"{BEST},{OTHER}", id="two, the best first"),
        pytest.param([BEST], 3, BEST, id="fewer than asked for"),
        pytest.param(
            ["[fd00::7]:8000", BEST], 2, f"[fd00::7]:8000,{BEST}", id="an IPv6 address in brackets"
        ),
    ],
)
@pytest.mark.usefixtures("wire")
def test_e7_the_value_is_a_list_of_addresses_with_ports_in_the_order_of_preference(
    addresses: Sequence[str], picks: int, value: str
) -> None:
    assert destinations(Envoy(Epp(of(*addresses), picks=picks))) == (value, value)


@pytest.mark.usefixtures("wire")
def test_e7_a_gateway_that_takes_no_list_gets_the_best() -> None:
    settings = ExtProcSettings(destination_list=False)
    assert destinations(Envoy(Epp(pool(), picks=3), settings=settings)) == (BEST, BEST)


@pytest.mark.parametrize("modes", MODES)
@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"picks": 3}, id="a list"),
        pytest.param({"emit_endpoint_scores": True}, id="scores beside it"),
        pytest.param({"policies": Policies(targets={"llama": "tiny"})}, id="another model's name"),
        pytest.param({"plugins": [Steering()]}, id="a plugin that sets the header"),
    ],
)
@pytest.mark.usefixtures("wire")
def test_e8_header_and_metadata_never_differ(changed: Any, modes: Modes) -> None:
    header, metadata = destinations(Envoy(Epp(pool(), **changed), modes))
    assert header == metadata
    assert header.startswith(BEST)


@pytest.mark.parametrize("modes", MODES)
@pytest.mark.parametrize(
    ("made", "status", "reason"),
    [
        pytest.param(lambda: Epp([]), 503, "rejected-no-endpoints", id="no endpoint"),
        pytest.param(
            lambda: Epp(pool(), filters=[RefusingFilter()]),
            429,
            "rejected-saturated",
            id="none passes the filters",
        ),
        pytest.param(
            lambda: Epp(
                of(BEST, waiting_requests=100, requested_at=99.5),
                plugins=[make_plugin(ProbabilisticAdmitter)],
                policies=Policies(priorities={"batch": -1}),
            ),
            429,
            "rejected-saturated",
            id="sheddable under load",
        ),
    ],
)
@pytest.mark.usefixtures("wire")
def test_e9_without_a_destination_the_request_is_answered(
    made: Callable[[], Epp], status: int, reason: str, modes: Modes
) -> None:
    envoy = Envoy(made(), modes)
    received = envoy.request_headers(POST | {"x-llm-d-inference-objective": "batch"})
    if modes != NO_BODIES:
        received = envoy.request_body()
    (refused,) = (each.immediate_response for each in received)
    assert refused.status.code == status
    headers = {each.header.key: each.header.raw_value for each in refused.headers.set_headers}
    assert headers["x-llm-d-request-dropped-reason"] == reason.encode()
    assert json.loads(refused.body)["error"]["code"] == status
    assert envoy.finished == [(0, "")]
    assert envoy.epp.in_flight == 0


# --- what the gateway tells -------------------------------------------------------------------


@pytest.mark.parametrize("modes", MODES)
@pytest.mark.parametrize(
    ("served", "charged"),
    [
        pytest.param(OTHER, OTHER, id="another one"),
        pytest.param(BEST, BEST, id="the one picked"),
        pytest.param("", BEST, id="nothing told"),
        pytest.param("192.0.2.9:1", BEST, id="one that the pool does not have"),
        pytest.param("no address", BEST, id="what is no address"),
    ],
)
@pytest.mark.usefixtures("wire")
def test_e10_the_load_is_with_the_endpoint_that_served(
    served: str, charged: str, modes: Modes
) -> None:
    epp = Epp(pool(), picks=2)
    envoy = Envoy(epp, modes)
    envoy.post()
    assert {e.address: e.load.in_flight for e in epp.endpoints} == {BEST: 1, RANK: 0, OTHER: 0}
    envoy.response_headers(served=served)
    loads = {e.address: e.load.in_flight for e in epp.endpoints}
    assert loads == {BEST: 0, RANK: 0, OTHER: 0, charged: 1}
    envoy.reset()
    assert epp.in_flight == 0


# --- health -----------------------------------------------------------------------------------


async def health_of(port: int) -> dict[str, int]:
    """Return the status of each service that the protocol names."""
    status = {}
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for service in ("liveness", "readiness", EXT_PROC_SERVICE):
            question = health_pb2.HealthCheckRequest(service=service)
            status[service] = (await stub.Check(question, timeout=10)).status
    return status


@pytest.mark.asyncio(loop_scope="module")
async def test_e11_liveness_is_the_process_and_readiness_the_pool(picker: Picker) -> None:
    status = health_pb2.HealthCheckResponse
    reported = picker.app.pool.store.reported
    for synced in (True, False, True):
        reported.set() if synced else reported.clear()
        readiness = status.SERVING if synced else status.NOT_SERVING
        assert await health_of(picker.ports.health) == {
            "liveness": status.SERVING,
            "readiness": readiness,
            EXT_PROC_SERVICE: readiness,
        }


# --- all of them ------------------------------------------------------------------------------


def test_every_rule_has_a_test() -> None:
    tested = {name.split("_")[1] for name in vars(sys.modules[__name__]) if name[:6] == "test_e"}
    assert tested - {"every"} == {f"e{rule}" for rule in range(1, 12)}
