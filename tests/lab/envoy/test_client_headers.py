"""The client headers that a real Envoy passes on, removes and sets."""

import json

import pytest
from lab.envoy.test_gateway import running_gateway, running_model_server, running_picker

from epp.ext_proc import client_headers
from epp.ext_proc.control_headers import CONTROL_HEADERS
from epp.ext_proc.processing_request import SERVED_KEY, SUBSET_KEY
from epp.lab.envoy import ClientHeaders, GatewayConfig, HeaderRules, Mode
from epp.lab.envoy.bootstrap import bootstrap
from epp.lab.envoy.client_headers import (
    CLIENT_HEADERS,
    HeaderToSet,
    header_to_set,
    synonyms,
)
from epp.lab.envoy.names import DESTINATION_HEADER, STEERING_HEADERS
from epp_plugins.slo_headers import TPOT_HEADERS, TTFT_HEADERS

pytestmark = pytest.mark.integration

FAIRNESS, OLD_FAIRNESS = "x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id"
SENT = dict.fromkeys(CLIENT_HEADERS, "mine")


async def seen_by_the_picker(
    rules: HeaderRules, headers: dict[str, str], *, mode: Mode = Mode.LEAN, trusted_hops: int = 0
) -> dict[str, str]:
    """Send a request; return its headers as the endpoint picker gets them."""
    async with (
        running_model_server() as server,
        running_picker(mode) as (picker, epp_port),
        running_gateway(
            GatewayConfig(
                mode=mode,
                endpoints=(server.address,),
                listen_port=0,
                epp_port=epp_port,
                headers=rules,
                trusted_hops=trusted_hops,
            )
        ) as (_envoy, client),
    ):
        picker.destination = server.address
        assert (await client.post("/v1/x", content=b"{}", headers=headers)).status_code == 200
    (seen,) = picker.requests
    return seen


def test_the_names_are_those_that_the_endpoint_picker_and_its_plugins_read() -> None:
    # Envoy drops a header with an underscore, and only Envoy makes metadata of a subset hint.
    assert {*CLIENT_HEADERS} - {SUBSET_KEY} == client_headers.CLIENT_HEADERS - {"session_id"}
    assert {*CLIENT_HEADERS, *STEERING_HEADERS, SERVED_KEY} >= CONTROL_HEADERS
    assert synonyms(TTFT_HEADERS[0]) == TTFT_HEADERS
    assert synonyms(TPOT_HEADERS[1]) == TPOT_HEADERS
    assert DESTINATION_HEADER not in CLIENT_HEADERS


async def test_by_default_a_client_sets_its_own_policy() -> None:
    seen = await seen_by_the_picker(HeaderRules(), SENT)
    assert SENT.items() <= seen.items()


@pytest.mark.parametrize("mode", Mode)
async def test_stripped_headers_do_not_reach_the_endpoint_picker(mode: Mode) -> None:
    rules = HeaderRules(
        client_headers=ClientHeaders.STRIP, kept=("x-session-token",), stripped=("x-zone",)
    )
    underscored = {name.replace("-", "_"): "mine" for name in SENT}
    sent = {**SENT, **underscored, "X-Zone": "mine", "x-other": "mine"}
    seen = await seen_by_the_picker(rules, sent, mode=mode)
    mine = {name for name, value in seen.items() if value == "mine"}
    assert mine == {"x-session-token", "x-other"}


@pytest.mark.parametrize("mode", Mode)
async def test_a_header_that_the_gateway_sets_is_not_the_clients(mode: Mode) -> None:
    rules = HeaderRules(
        to_set=(
            header_to_set(f"{FAIRNESS}=%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%"),
            header_to_set("x-llm-d-inference-objective=chat = 100%%"),
        )
    )
    seen = await seen_by_the_picker(rules, SENT, mode=mode)
    assert seen[FAIRNESS] == "127.0.0.1"
    assert seen["x-llm-d-inference-objective"] == "chat = 100%"
    assert OLD_FAIRNESS not in seen, "the old name would speak where the new one is missing"
    assert seen["x-llm-d-request-ttl-ms"] == "mine"


async def test_a_format_that_yields_nothing_leaves_nothing_of_the_clients() -> None:
    # There is no TLS, so nobody has shown a certificate.
    rules = HeaderRules(to_set=(HeaderToSet(FAIRNESS, "%DOWNSTREAM_PEER_SUBJECT%"),))
    seen = await seen_by_the_picker(rules, SENT)
    assert {FAIRNESS, OLD_FAIRNESS}.isdisjoint(seen)


async def test_a_format_takes_what_a_filter_before_it_has_found() -> None:
    """As the claims of a token, which jwt_authn puts into the metadata."""
    tenant = "%DYNAMIC_METADATA(envoy.filters.http.jwt_authn:payload)%"
    rule = {
        "header": "x-claim",
        "on_header_present": {
            "metadata_namespace": "envoy.filters.http.jwt_authn",
            "key": "payload",
        },
    }
    kind = "type.googleapis.com/envoy.extensions.filters.http.header_to_metadata.v3.Config"
    claims = {"name": "claims", "typed_config": {"@type": kind, "request_rules": [rule]}}
    async with (
        running_model_server() as server,
        running_picker(Mode.LEAN) as (picker, epp_port),
    ):
        picker.destination = server.address
        document = bootstrap(
            GatewayConfig(
                endpoints=(server.address,),
                listen_port=0,
                epp_port=epp_port,
                headers=HeaderRules(to_set=(HeaderToSet(FAIRNESS, tenant),)),
            )
        )
        (listener,) = document["static_resources"]["listeners"]
        manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
        manager["http_filters"].insert(0, claims)
        async with running_gateway(json.dumps(document)) as (_envoy, client):
            for headers in ({"x-claim": "acme", FAIRNESS: "mine"}, {FAIRNESS: "mine"}):
                await client.post("/v1/x", content=b"{}", headers=headers)
    known, unknown = picker.requests
    assert known[FAIRNESS] == "acme"
    assert FAIRNESS not in unknown


async def test_the_address_that_envoy_saw_is_passed_on_and_a_forged_one_is_not_believed() -> None:
    forged = {"x-forwarded-for": "6.6.6.6, 7.7.7.7", "x-envoy-external-address": "8.8.8.8"}
    seen = await seen_by_the_picker(HeaderRules(), forged)
    before, _, last = seen["x-forwarded-for"].rpartition(",")
    assert before == forged["x-forwarded-for"]
    assert last not in forged.values()
    assert seen["x-envoy-external-address"] == "127.0.0.1"


async def test_behind_a_proxy_the_address_that_it_saw_is_passed_on() -> None:
    forged = {"x-forwarded-for": "6.6.6.6, 7.7.7.7", "x-envoy-external-address": "8.8.8.8"}
    seen = await seen_by_the_picker(HeaderRules(), forged, trusted_hops=1)
    assert seen["x-envoy-external-address"] == "7.7.7.7"


async def test_a_client_does_not_choose_retries_and_timeouts() -> None:
    asked = {
        "x-envoy-retry-on": "5xx",
        "x-envoy-max-retries": "100",
        "x-envoy-upstream-rq-timeout-ms": "1",
        "x-envoy-upstream-rq-per-try-timeout-ms": "1",
    }
    seen = await seen_by_the_picker(HeaderRules(), asked)
    assert seen.keys().isdisjoint(asked)
